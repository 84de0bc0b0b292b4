// Calls compiled kernels one after the other, so that Python makes one call for all launches of a program.
//
// Arguments are addresses and integers. Every calling convention for which kernels are compiled passes both as words, so
// a kernel is called as a function of words; of an integer of 32 bits it reads the lower half.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace {

constexpr size_t kMostArguments = 48;  // as in src/sparloom/ragged/runtime.py

using Call = void (*)(int64_t entry, const int64_t* arguments);

template <size_t>
using Word = int64_t;

template <size_t... I>
void call(int64_t entry, const int64_t* arguments, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(Word<I>...)>(entry)(arguments[I]...);
}

template <size_t Count>
void call_with(int64_t entry, const int64_t* arguments) {
    call(entry, arguments, std::make_index_sequence<Count>{});
}

template <size_t... Count>
constexpr std::array<Call, sizeof...(Count)> by_count(std::index_sequence<Count...>) {
    return {call_with<Count>...};
}

constexpr auto kCalls = by_count(std::make_index_sequence<kMostArguments + 1>{});

}  // namespace

// words: of each launch the address of its kernel, the number of its arguments, and these.
extern "C" void sparloom_launches(const int64_t* words, int64_t launches) {
    for (int64_t n = 0; n < launches; ++n) {
        const int64_t entry = words[0], count = words[1];
        kCalls[static_cast<size_t>(count)](entry, words + 2);
        words += 2 + count;
    }
}
