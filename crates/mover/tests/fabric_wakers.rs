//! Tasks that run at once when they are woken, in the thread that moves bytes or keeps the time, and end there
//! what that thread belongs to.

#[path = "fabric_support/pair.rs"]
mod pair;

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::{Access, Fabric, Imm, Options, Peer};
use pair::{Pair, SOON, empty, filled, pattern, sent};

const WITHIN: Options = Options::within(SOON);
const VALUE: Imm = Imm(3);

type Deed = Box<dyn FnOnce() + Send>;

/// Does something once, when it is woken.
struct Task(Mutex<Option<Deed>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let deed = self.0.lock().expect("no panic").take();
        if let Some(deed) = deed {
            deed();
        }
    }
}

/// A waker whose task does this, and what hears that it is done.
fn task(deed: impl FnOnce() + Send + 'static) -> (Waker, Receiver<()>) {
    let (done, heard) = channel();
    let deed: Deed = Box::new(move || {
        deed();
        let _ = done.send(());
    });
    (Waker::from(Arc::new(Task(Mutex::new(Some(deed))))), heard)
}

fn is_waited_for(future: impl Future, waker: &Waker) {
    let polled = pin!(future).poll(&mut Context::from_waker(waker));
    assert!(matches!(polled, Poll::Pending), "it is too early");
}

fn await_lost(peer: &Peer) {
    let began = Instant::now();
    while peer.lost().is_none() {
        assert!(began.elapsed() < SOON, "the other end notices nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A value comes with bytes, and whoever waited for it does this with the fabric and the peer that it came from.
fn a_value_comes(shm: bool, deed: impl FnOnce(Fabric, Peer) + Send + 'static) {
    let Pair {
        here,
        there,
        to_there,
        to_here,
    } = Pair::new(shm);
    let source = filled(&there, &pattern(1000, 1), Access::LOCAL);
    let target = empty(&here, 1000, Access::READ_WRITE);
    let to = sent(&target).whole();
    let counter = here.counter(VALUE);
    let (waker, done) = task(move || deed(here, to_there));
    is_waited_for(counter.reaches(1), &waker);
    drop(waker);
    let written = to_here.write_imm(&source.whole(), &to, VALUE, WITHIN);
    done.recv_timeout(SOON).expect("the task comes to its end");
    // It may have heard of it, or of the end.
    let _ = written.wait();
    await_lost(&to_here);
}

#[test]
fn given_a_task_that_drops_the_fabric_when_a_value_comes_then_it_ends_and_the_peer_is_told() {
    for shm in [false, true] {
        a_value_comes(shm, |fabric, _| drop(fabric));
    }
}

#[test]
fn given_a_task_that_closes_the_peer_when_its_value_comes_then_it_ends_and_the_peer_is_told() {
    for shm in [false, true] {
        a_value_comes(shm, |_fabric, peer| peer.close());
    }
}

#[test]
fn given_a_task_that_takes_the_rail_out_of_use_by_which_its_value_came_then_it_comes_to_its_end() {
    a_value_comes(false, |fabric, peer| {
        peer.break_rail(0);
        peer.mend_rail(0);
        drop(fabric);
    });
}

#[test]
fn given_a_task_that_drops_the_fabric_at_a_deadline_then_the_thread_that_keeps_the_time_ends_it() {
    let Pair {
        here,
        to_there,
        to_here,
        there: _there,
    } = Pair::new(false);
    let mut message = to_there.recv(Options::within(Duration::from_millis(50)));
    let (waker, done) = task(move || drop(here));
    is_waited_for(&mut message, &waker);
    drop(waker);
    done.recv_timeout(SOON).expect("the task comes to its end");
    await_lost(&to_here);
}
