//! Everything in order.

use crowfly_route::hop::Standing;

use crate::machine::{Server, candidate, codes, search, xeon};

#[test]
fn given_all_software_in_order_both_ways_of_gpudirect_storage_are_open_and_come_first() {
    let ready = Server::ready(xeon);
    let found = search(&ready.machine, "/data/m.safetensors", "gpu:0").expect("both exist");
    let order: Vec<(&str, Standing)> = found
        .iter()
        .map(|c| (c.route.name.as_str(), c.standing()))
        .collect();
    assert_eq!(
        order,
        [
            ("gpudirect-storage", Standing::Open),
            ("gpudirect-storage-p2pdma", Standing::Open),
            ("o-direct", Standing::Open),
            ("page-cache", Standing::Open),
        ]
    );
    assert_eq!(codes(&found[0]), []);
    assert_eq!(codes(&found[1]), []);
    let rdma = candidate(&ready.machine, "nic:mlx5_0", "gpu:0", "gpudirect-rdma");
    assert_eq!(codes(&rdma), []);
}
