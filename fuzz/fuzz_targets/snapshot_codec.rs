//! A snapshot of any bytes: refused, or one that reads back as it is written and decodes.
#![no_main]

use crowfly_route::snapshot::Snapshot;
use crowfly_route::topology::Topology;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let Ok(snapshot) = Snapshot::from_json(file) else {
        return;
    };
    let again = Snapshot::from_json(snapshot.to_json().as_bytes());
    assert_eq!(again.expect("our own text"), snapshot);
    let topology = Topology::from_snapshot(&snapshot);
    for (a, b) in topology.devices().zip(topology.devices().skip(1)) {
        let (there, back) = (topology.distance(a, b), topology.distance(b, a));
        assert_eq!(there.relation, back.relation);
    }
    for mount in &topology.mounts {
        if let Some(block) = topology.block_of(mount) {
            topology.drives_under(block);
        }
    }
});
