//! How bytes are shared out over the rails that can carry them.

use super::*;

#[test]
fn given_memory_of_a_numa_node_then_its_own_nics_share_the_bytes_and_the_others_are_named() {
    let world = World::new(&BOTH_SOCKETS);
    let slot = world.write(8 * MIB, Some(1));
    let given = world.given();
    assert_eq!(given["mlx5_0:1"] + given["mlx5_1:1"], 0);
    assert_eq!((given["mlx5_4:1"], given["mlx5_5:1"]), (4 * MIB, 4 * MIB));
    let delivery = world.finish(&slot, |_, bytes| Some(bytes));
    let left_out: Vec<_> = delivery.left_out.iter().map(|l| l.nic.as_str()).collect();
    assert_eq!(left_out, ["mlx5_0:1", "mlx5_1:1"]);
    assert!(delivery.left_out[0].why.contains("NUMA node"));
}

#[test]
fn given_memory_anywhere_then_all_nics_share_the_bytes() {
    let world = World::new(&BOTH_SOCKETS);
    let slot = world.write(8 * MIB, None);
    assert!(world.given().values().all(|bytes| *bytes == 2 * MIB));
    assert!(
        world
            .finish(&slot, |_, bytes| Some(bytes))
            .left_out
            .is_empty()
    );
}

#[test]
fn bytes_are_shared_out_by_what_each_nic_can_carry() {
    let world = World::new(&[
        (Path::Verbs, "mlx5_0:1", 150e9),
        (Path::Verbs, "mlx5_1:1", 50e9),
    ]);
    let _slot = world.write(8 * MIB, None);
    let given = world.given();
    assert_eq!((given["mlx5_0:1"], given["mlx5_1:1"]), (6 * MIB, 2 * MIB));
}

#[test]
fn what_a_nic_carries_for_other_peers_counts_against_it() {
    let load = Arc::default();
    let rails = [BOTH_SOCKETS[0], BOTH_SOCKETS[1]];
    let other = World::sharing(&rails[..1], &load);
    let busy = other.write(4 * MIB, None);
    let world = World::sharing(&rails, &load);
    let _slot = world.write(4 * MIB, None);
    assert_eq!(world.given()["mlx5_1:1"], 4 * MIB, "the idle one first");
    other.finish(&busy, |_, bytes| Some(bytes));
    assert_eq!(load.bytes(), 0);
}
