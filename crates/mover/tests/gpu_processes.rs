//! A GPU's memory between two real processes of this host. Both load a stand-in for NVIDIA's runtime whose
//! handles open memory of the process that made them, as long as that process lives and has not freed it.

#[path = "gpu_support/processes.rs"]
mod processes;
#[path = "gpu_support/stand_in.rs"]
mod stand_in;

use std::path::Path;
use std::time::{Duration, Instant};

use processes::{Child, LEN};
use stand_in::stand_in;

/// How soon a peer hears that a process of this host ended.
const HEARD_OF: Duration = Duration::from_secs(10);

/// Run as a child of the tests below.
#[test]
fn child() {
    processes::be_child();
}

macro_rules! needs_stand_in {
    () => {
        match stand_in() {
            Ok(folder) => folder,
            Err(why) => crowfly_waive::waived!("{why}"),
        }
    };
}

/// A process with memory on a GPU, and one that has been told of it and can reach it there.
fn sharing(runtime: &Path) -> (Child, Child) {
    let mut owner = Child::start("owner", Some(runtime), &[]);
    let region = owner.hear("region");
    let mut peer = Child::start("peer", Some(runtime), &[&region]);
    assert_eq!(peer.hear("open"), "gpu:0");
    (owner, peer)
}

#[test]
fn given_two_processes_the_gpus_copy_from_one_s_memory_to_the_other_s_and_back() {
    let runtime = needs_stand_in!();
    let (mut owner, mut peer) = sharing(&runtime);
    let straight = format!("shm direct gpu-ipc bounced 0 of {LEN}");
    assert_eq!(peer.ask("read"), format!("{straight}: the owner's bytes"));
    assert_eq!(peer.ask("write"), straight);
    assert_eq!(owner.ask("look"), "the peer's bytes");
    assert_eq!(peer.ask("leave"), "0 left behind");
    assert_eq!(owner.ask("leave"), "0 left behind");
}

#[test]
fn given_an_owner_that_dies_a_peer_that_has_its_memory_open_gets_a_typed_error_in_time_and_goes_on()
{
    let runtime = needs_stand_in!();
    let (mut owner, mut peer) = sharing(&runtime);
    assert!(peer.ask("read").ends_with("the owner's bytes"));
    owner.kill();
    // What is mapped can be read until the death is heard of.
    let until = Instant::now() + HEARD_OF;
    let mut read = peer.ask("read");
    while read != "peer-lost" {
        assert!(read.ends_with("the owner's bytes"), "{read}");
        assert!(
            Instant::now() < until,
            "the owner is gone, and nobody says so"
        );
        read = peer.ask("read");
    }
    assert_eq!(peer.ask("leave"), "0 left behind");
}

#[test]
fn given_an_owner_that_dies_before_its_memory_was_opened_nothing_of_it_is_touched() {
    let runtime = needs_stand_in!();
    let (mut owner, mut peer) = sharing(&runtime);
    owner.kill();
    assert_eq!(peer.ask("read"), "peer-lost");
    assert_eq!(peer.ask("leave"), "0 left behind");
}

#[test]
fn given_a_peer_that_dies_with_the_memory_open_its_owner_gets_it_back() {
    let runtime = needs_stand_in!();
    let (mut owner, mut peer) = sharing(&runtime);
    assert!(peer.ask("read").ends_with("the owner's bytes"));
    peer.kill();
    assert_eq!(owner.ask("take back"), "taken back");
    assert_eq!(owner.ask("leave"), "0 left behind");
}

#[test]
fn given_a_peer_that_closes_its_fabric_and_lives_on_the_owner_gets_its_memory_back_at_once() {
    let runtime = needs_stand_in!();
    let (mut owner, mut peer) = sharing(&runtime);
    assert!(peer.ask("read").ends_with("the owner's bytes"));
    assert_eq!(peer.ask("close"), "closed");
    let asked = Instant::now();
    assert_eq!(owner.ask("take back"), "taken back");
    assert!(asked.elapsed() < HEARD_OF, "it was waited for in vain");
    assert_eq!(peer.ask("leave"), "0 left behind");
    assert_eq!(owner.ask("leave"), "0 left behind");
}

#[test]
fn given_memory_that_its_owner_took_back_a_peer_is_told_that_there_is_no_such_region() {
    let runtime = needs_stand_in!();
    let (mut owner, mut peer) = sharing(&runtime);
    assert_eq!(owner.ask("take back"), "taken back");
    assert_eq!(peer.ask("read"), "no-such-region");
    assert_eq!(peer.ask("leave"), "0 left behind");
}

#[test]
fn a_handle_opens_in_another_process_and_is_refused_by_name_once_it_is_stale() {
    let runtime = needs_stand_in!();
    let stale = "gpu-call-failed by cuIpcOpenMemHandle_v2: 400 (invalid resource handle)";
    let mut owner = Child::start("owner", Some(&runtime), &[]);
    owner.hear("region");
    let handle = owner.ask("handle");
    let mut other = Child::start("opener", Some(&runtime), &[&handle]);
    assert_eq!(other.ask("open"), "the owner's bytes");
    assert_eq!(owner.ask("take back"), "taken back");
    assert_eq!(other.ask("open"), stale, "it was freed");
    let mut owner = Child::start("owner", Some(&runtime), &[]);
    owner.hear("region");
    let handle = owner.ask("handle");
    let mut other = Child::start("opener", Some(&runtime), &[&handle]);
    owner.kill();
    assert_eq!(other.ask("open"), stale, "who made it is gone");
}

#[test]
fn given_a_process_without_the_runtime_the_owner_s_bytes_come_through_its_own_host_memory_and_why_is_told()
 {
    let runtime = needs_stand_in!();
    let mut owner = Child::start("owner", Some(&runtime), &[]);
    let region = owner.hear("region");
    let mut peer = Child::start("peer", None, &[&region]);
    assert_eq!(peer.hear("open"), "host");
    let through = format!("tcp socket sockets bounced {LEN} of {LEN}");
    let why = "gpu-memory-not-shared gpu-through-host";
    assert_eq!(
        peer.ask("read"),
        format!("{through}: the owner's bytes ({why})")
    );
    // Into host memory they would not go straight either way.
    assert_eq!(peer.ask("require"), "route-refused (gpu-through-host)");
    assert_eq!(peer.ask("leave"), "0 left behind");
}
