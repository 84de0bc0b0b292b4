// The edges of a graph by receiver and by sender, each in the order in which they were given; optionally with other
// self-loops, which come last.
//
//   for edges                     count those of each node, without self-loops if there are to be others
//   for edges, then self-loops    put each in its place by receiver and by sender
//
// Preconditions (checked in Python): results have room for all edges and the new self-loops, which are fewer than 2^31.

#include <algorithm>
#include <cstdint>

extern "C" {

struct EdgeSide {
    int64_t* indptr;           // (nodes + 1)
    int32_t *others, *edges;   // (edges) node at the other end, and number of the edge
    int64_t nodes;
};

struct AttentionEdges {
    const void *receivers, *senders;           // (count)
    int64_t receiver_step, sender_step, count;
    int64_t loops;                             // of the first nodes, in place of those that there are; 0: change nothing
    int64_t total;                             // result: edges that remain, and self-loops
    EdgeSide by_receiver, by_sender;
    int32_t wide;                              // 64 bits
};

}  // extern "C"

namespace {

enum Status { kFine, kReceiver, kSender };  // which end is out of range

template <typename Int>
class Sorter {
   public:
    explicit Sorter(AttentionEdges& a)
        : a_(a), receivers_(static_cast<const Int*>(a.receivers)), senders_(static_cast<const Int*>(a.senders)) {}

    Status run() const {
        for (const EdgeSide& side : {a_.by_receiver, a_.by_sender}) std::fill_n(side.indptr, side.nodes + 1, 0);
        for (int64_t e = 0; e < a_.count; ++e) {
            if (receiver(e) < 0 || receiver(e) >= a_.by_receiver.nodes) return kReceiver;
            if (sender(e) < 0 || sender(e) >= a_.by_sender.nodes) return kSender;
        }
        a_.total = 0;
        each([&](int64_t receiver, int64_t sender) {
            ++a_.by_receiver.indptr[receiver];
            ++a_.by_sender.indptr[sender];
            ++a_.total;
        });
        for (const EdgeSide& side : {a_.by_receiver, a_.by_sender}) {
            int64_t begin = 0;
            for (int64_t node = 0; node <= side.nodes; ++node) {
                const int64_t count = side.indptr[node];
                side.indptr[node] = begin;
                begin += count;
            }
        }
        int32_t edge = 0;
        each([&](int64_t receiver, int64_t sender) {
            put(a_.by_receiver, receiver, sender, edge);
            put(a_.by_sender, sender, receiver, edge);
            ++edge;
        });
        for (const EdgeSide& side : {a_.by_receiver, a_.by_sender}) {  // each begin has moved to the next one
            std::copy_backward(side.indptr, side.indptr + side.nodes, side.indptr + side.nodes + 1);
            side.indptr[0] = 0;
        }
        return kFine;
    }

   private:
    int64_t receiver(int64_t e) const { return receivers_[e * a_.receiver_step]; }
    int64_t sender(int64_t e) const { return senders_[e * a_.sender_step]; }

    template <typename Work>
    void each(const Work& work) const {
        for (int64_t e = 0; e < a_.count; ++e) {
            if (a_.loops == 0 || receiver(e) != sender(e)) work(receiver(e), sender(e));
        }
        for (int64_t node = 0; node < a_.loops; ++node) work(node, node);
    }

    static void put(const EdgeSide& side, int64_t node, int64_t other, int32_t edge) {
        const int64_t place = side.indptr[node]++;
        side.others[place] = static_cast<int32_t>(other);
        side.edges[place] = edge;
    }

    AttentionEdges& a_;
    const Int *receivers_, *senders_;
};

}  // namespace

extern "C" int32_t sparloom_attention_edges(void* arguments) {
    AttentionEdges& a = *static_cast<AttentionEdges*>(arguments);
    return a.wide ? Sorter<int64_t>(a).run() : Sorter<int32_t>(a).run();
}
