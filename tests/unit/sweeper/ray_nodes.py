"""Emulate a Ray cluster of two nodes with one processor each: print its address, keep it until the input ends."""

import sys

from ray.cluster_utils import Cluster

STORE = 80 * 2**20  # bytes, about the least that Ray accepts


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={
        "num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False})
    cluster.add_node(num_cpus=1, object_store_memory=STORE)
    cluster.wait_for_nodes()
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
