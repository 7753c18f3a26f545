//! Any bytes, and any bytes inside a NCCL topology file: refused, or a topology without circles.
#![no_main]

use crowfly_route::topology::Topology;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut framed = b"<system>".to_vec();
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"</system>");
    check(&framed);
});

fn check(file: &[u8]) {
    match Topology::from_any(file) {
        Ok(topology) => {
            for address in topology.pci.keys() {
                assert!(
                    topology
                        .above(*address)
                        .all(|bridge| bridge.address != *address)
                );
            }
            for (a, b) in topology.devices().zip(topology.devices().skip(1)) {
                let (there, back) = (topology.distance(a, b), topology.distance(b, a));
                assert_eq!(there.relation, back.relation);
            }
        }
        Err(error) => assert!(!error.code().is_empty()),
    }
}
