//! What a look at the machine these tests run on must hold, whatever machine that is.

use crowfly_machine::{Options, Root, capture};
use crowfly_route::snapshot::Snapshot;

#[test]
fn a_live_capture_reads_back_as_it_was_written() {
    let root = Root::live().expect("the live machine");
    let seen = capture(&root, &Options::default());
    let read = Snapshot::from_json(seen.to_json().as_bytes()).expect("our own text");
    assert_eq!(read, seen);
    assert!(
        seen.text("/proc/meminfo")
            .is_some_and(|text| text.contains("MemTotal"))
    );
    assert!(!seen.redacted);
}
