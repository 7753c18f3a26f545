//! The worked example works, over both paths, between two processes.

use std::process::Command;

#[test]
fn given_two_processes_when_a_cache_is_handed_over_then_every_layer_is_right_and_its_receipt_too() {
    for path in ["shm", "tcp"] {
        let run = Command::new(env!("CARGO"))
            .args([
                "run",
                "-q",
                "-p",
                "crowfly-mover",
                "--example",
                "kv_handoff",
                "--",
                path,
            ])
            .output()
            .expect("cargo");
        let (out, err) = (
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr),
        );
        assert!(run.status.success(), "{out}{err}");
        assert!(out.contains(&format!("every receipt `{path}`")), "{out}");
    }
}
