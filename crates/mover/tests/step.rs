//! Training runs of ranks that are threads: what they tell, and that what is restored is what a run
//! that never stopped would have had. Ranks that are killed are processes: the command's tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::fake::{FakeGpus, Model};
use crowfly_mover::Destination;
use crowfly_mover::collective::{Group, GroupSettings};
use crowfly_mover::fabric::rendezvous::Folder;
use crowfly_mover::fabric::{Fabric, Settings, SharedKey};
use crowfly_mover::gpu::Gpu;
use crowfly_mover::step::{
    Crew, Moment, Order, Recovery, Restored, RunError, Shards, Stepped, Work, train,
};
use crowfly_route::hop::Class;
use crowfly_route::receipt::Path as Way;
use crowfly_route::units::Bytes;

const BATCH: Bytes = Bytes(32 << 10);

/// A folder of data and checkpoints, and what is to be done in it.
struct Ground {
    folder: tempfile::TempDir,
    order: Order,
}

impl Ground {
    fn new(ranks: u32, steps: u64) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        // Fewer batches than are read: the data is gone through more than once.
        let shards = Shards::plan(&folder.path().join("data"), 5, BATCH, 7);
        shards.make(|_| {}).expect("made");
        let order = Order {
            ranks,
            steps,
            parameters: 5_000,
            layers: 3,
            seed: 5,
            batch: BATCH,
            data: shards.files(),
            work: Work::Once,
            every: Some(2),
            checkpoints: folder.path().join("checkpoints"),
            recovery: Recovery::Restart,
            kill: None,
            deadline: 60.0,
            gpu: None,
        };
        Self { folder, order }
    }

    fn meet(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Ranks that meet in a folder and remember what they are told.
struct Thread {
    meet: PathBuf,
    rank: usize,
    ranks: usize,
    losses: u32,
    told: Vec<Moment>,
}

impl Crew for Thread {
    fn muster(&mut self, before: Option<Group>) -> Result<Group, RunError> {
        assert!(before.is_none(), "nobody is lost here");
        let settings = Settings {
            threads: Some(1),
            ..Settings::new(SharedKey::derive("a test of steps"))
        };
        let fabric = Arc::new(Fabric::new(settings)?);
        let directory = Folder::at(&self.meet);
        let (rank, ranks) = (self.rank, self.ranks);
        Ok(Group::form(
            fabric,
            &directory,
            "run",
            rank,
            ranks,
            GroupSettings::default(),
        )?)
    }

    fn losses_before(&self) -> u32 {
        self.losses
    }

    fn tell(&mut self, moment: Moment) -> Result<(), RunError> {
        self.told.push(moment);
        Ok(())
    }

    fn before_exchange(&mut self, _step: u64) {}
}

/// Runs all ranks; what each ended with, and what it told.
fn run(
    order: &Order,
    meet: &Path,
    losses: u32,
    to: &Destination,
) -> Vec<Result<(u64, Vec<Moment>), RunError>> {
    let ranks = order.ranks as usize;
    let start = |rank| {
        let (order, meet, to) = (order.clone(), meet.to_owned(), to.clone());
        thread::spawn(move || {
            let mut crew = Thread {
                meet,
                rank,
                ranks,
                losses,
                told: Vec::new(),
            };
            let ended = train(&order, to, &mut crew)?;
            Ok((ended.digest, crew.told))
        })
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    let join = |thread: thread::JoinHandle<_>| thread.join().expect("no panic");
    threads.into_iter().map(join).collect()
}

fn to_host(order: &Order, meet: &Path, losses: u32) -> Vec<(u64, Vec<Moment>)> {
    let all = run(order, meet, losses, &Destination::Host(None));
    all.into_iter().map(|rank| rank.expect("runs")).collect()
}

fn stepped(told: &[Moment]) -> Vec<&Stepped> {
    let steps = told.iter().filter_map(|moment| match moment {
        Moment::Stepped(stepped) => Some(&**stepped),
        _ => None,
    });
    steps.collect()
}

fn restored(told: &[Moment]) -> Option<&Restored> {
    told.iter().find_map(|moment| match moment {
        Moment::Restored(restored) => Some(&**restored),
        _ => None,
    })
}

#[test]
fn given_ranks_that_train_together_all_end_with_the_same_state_and_tell_every_step() {
    let ground = Ground::new(3, 5);
    let ranks = to_host(&ground.order, &ground.meet("meet"), 0);
    let (first, _) = &ranks[0];
    for (digest, told) in &ranks {
        assert_eq!(digest, first);
        let steps = stepped(told);
        let numbers: Vec<u64> = steps.iter().map(|stepped| stepped.step).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        for stepped in steps {
            let shares = stepped.read.shares.iter();
            let sum: Bytes = shares.map(|share| share.bytes).sum();
            assert_eq!((sum, stepped.read.asked), (BATCH, BATCH));
            assert_eq!(stepped.exchanged.size, ground.order.gradient_bytes());
            assert_eq!(stepped.exchanged.ranks, 3);
        }
        let saved = told.iter().filter_map(|moment| match moment {
            Moment::Saved(saved) => Some(saved.step),
            _ => None,
        });
        assert_eq!(saved.collect::<Vec<u64>>(), [2, 4]);
        let last = format!("{digest:016x}");
        assert!(matches!(told.last(), Some(Moment::Ended { digest, .. }) if *digest == last));
    }
    let mut none = ground.order.clone();
    none.every = None;
    let unsaved = to_host(&none, &ground.meet("again"), 0);
    assert_eq!(unsaved[0].0, *first, "checkpoints change nothing");
}

#[test]
fn given_a_run_that_stopped_another_one_restores_and_ends_as_if_it_had_gone_on() {
    let whole = Ground::new(2, 7);
    let expected = to_host(&whole.order, &whole.meet("meet"), 0)[0].0;
    let mut stopped = Ground::new(2, 5);
    to_host(&stopped.order, &stopped.meet("meet"), 0);
    stopped.order.steps = 7;
    let ranks = to_host(&stopped.order, &stopped.meet("later"), 1);
    for (digest, told) in &ranks {
        assert_eq!(*digest, expected);
        let restored = restored(told).expect("restored");
        assert_eq!(
            (restored.step, restored.ranks),
            (4, 2),
            "the latest complete one"
        );
        let read = restored.read.as_ref().expect("a receipt");
        assert!(read.asked >= stopped.order.checkpoint_bytes());
        let sum: Bytes = read.shares.iter().map(|share| share.bytes).sum();
        assert_eq!(sum, read.asked);
    }
}

#[test]
fn given_no_complete_checkpoint_a_run_begins_anew() {
    let ground = Ground::new(2, 3);
    let expected = to_host(&ground.order, &ground.meet("meet"), 0)[0].0;
    let anew = Ground::new(2, 3);
    for (digest, told) in to_host(&anew.order, &anew.meet("meet"), 1) {
        assert_eq!(digest, expected);
        let restored = restored(&told).expect("told");
        assert_eq!((restored.step, &restored.read), (0, &None));
    }
}

#[test]
fn given_a_checkpoint_of_another_run_it_is_refused() {
    let mut ground = Ground::new(1, 2);
    to_host(&ground.order, &ground.meet("meet"), 0);
    ground.order.seed = 6;
    let refused = run(
        &ground.order,
        &ground.meet("other"),
        1,
        &Destination::Host(None),
    );
    let error = refused
        .into_iter()
        .next()
        .expect("a rank")
        .expect_err("refused");
    assert_eq!(error.code(), "step-other-checkpoint");
    assert!(error.to_string().contains("its seed is 5"), "{error}");
    ground.order.seed = 5;
    ground.order.layers = 4;
    let refused = run(
        &ground.order,
        &ground.meet("shape"),
        1,
        &Destination::Host(None),
    );
    let error = refused
        .into_iter()
        .next()
        .expect("a rank")
        .expect_err("refused");
    assert_eq!(error.code(), "step-other-checkpoint");
}

#[test]
fn given_a_gpu_batches_are_read_into_its_memory_and_the_result_is_the_same() {
    let ground = Ground::new(1, 3);
    let expected = to_host(&ground.order, &ground.meet("meet"), 0)[0].0;
    let gpus = FakeGpus::plug(Dialect::Cuda, &[Model::default()]);
    let runtime = gpus.runtime().expect("it starts");
    let device = runtime.open(FakeGpus::address(0)).expect("it is there");
    let to = Destination::Gpu(Arc::new(Gpu::over(0, device)));
    let mut order = ground.order.clone();
    (order.gpu, order.every) = (Some(0), None);
    let ranks = run(&order, &ground.meet("gpu"), 0, &to);
    let (digest, told) = ranks.into_iter().next().expect("a rank").expect("runs");
    assert_eq!(digest, expected);
    for stepped in stepped(&told) {
        let ways = stepped
            .read
            .shares
            .iter()
            .map(|s| (s.path, s.class, s.bytes));
        let ways: Vec<_> = ways.collect();
        assert_eq!(
            ways,
            [(Way::Staged, Class::Staged, BATCH)],
            "no storage library is there"
        );
        assert!(
            stepped.times.fetch > 0.0,
            "the stand-in's own copy is told apart"
        );
    }
}
