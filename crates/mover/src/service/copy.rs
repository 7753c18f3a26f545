//! A copy: what `crowfly cp` does. Parts go from the source through a buffer to the destination, several
//! at a time; nothing appears under its name before it is whole.

use std::fmt;
use std::path::Path as FsPath;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crowfly_route::hop::Class;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{
    CpuSeconds, RECEIPT_SCHEMA, Receipt, Share, Verification, Visibility,
};
use crowfly_route::units::Bytes;

use super::account::{Doing, Leg, Legs, route};
use super::client::{Buffers, Client, Dialing, Purpose};
use super::error::ServiceError;
use super::limits::{STORE_WINDOW, WINDOW};
use super::ring::Ring;
use crate::digest;
use crate::fabric::Access;
use crate::objects::{Store, StoreSettings, at_a_time};

mod batch;
mod folders;
mod goal;
mod origin;
mod plan;
mod side;
mod stored;
mod terms;

use batch::{Batch, Moved};
use folders::Folders;
use goal::Known;
use plan::Planned;
pub use side::Side;
use side::sensible;
pub(crate) use terms::Terms;

/// Told of files that must not outlive a process that ends before its time: the path, and whether it
/// is about to be made (or else is finished or gone).
pub type Watch = Arc<dyn Fn(&FsPath, bool) + Send + Sync>;

/// What is to be copied.
#[derive(Clone)]
pub struct Asked {
    /// From.
    pub from: Side,
    /// To.
    pub to: Side,
    /// Whether folders are copied with all that is in them.
    pub recursive: bool,
    /// Whether links in folders count as what they lead to; they are left out otherwise.
    pub follow: bool,
    /// Whether permissions and the time of the last change are preserved exactly. Otherwise what is new
    /// has the permissions of its source less the umask, and what was there keeps its own.
    pub preserve: bool,
    /// Whether to go on with what an earlier copy left, and to leave what is unfinished on failure.
    pub resume: bool,
    /// Whether checksums of both ends are compared.
    pub verify: bool,
    /// How far the bytes may stray.
    pub policy: Policy,
    /// How long all of it may take.
    pub timeout: Option<Duration>,
    /// How to connect.
    pub dialing: Dialing,
    /// Whether what is at the destination may be replaced; only of objects it may be said that it may not.
    pub replace: bool,
    /// Where objects are, and as whom they are read and written.
    pub store: StoreSettings,
    /// The same of the destination, where that is another store than the source's or asked as another.
    pub goal_store: Option<StoreSettings>,
    /// Told of unfinished files of this machine that are not to be resumed.
    pub watch: Option<Watch>,
}

impl Asked {
    /// Where the destination is, if it is an object.
    fn store_of_goal(&self) -> &StoreSettings {
        self.goal_store.as_ref().unwrap_or(&self.store)
    }

    /// Whether both sides, if they are objects, are in one store.
    fn one_store(&self) -> bool {
        self.store.apart(self.store_of_goal()).is_none()
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asked({:?} to {:?})", self.from, self.to)
    }
}

/// What was copied.
#[derive(Clone, Debug)]
pub struct Copied {
    /// Where to: of one file that was copied into a folder, the file there.
    pub to: Place,
    /// Files that are whole at their destination.
    pub files: u64,
    /// Folders that are there, empty ones among them.
    pub folders: u64,
    /// Of those, files that an earlier copy had finished: they were read, held against the checksums of
    /// that copy, and left as they are.
    pub unchanged: u64,
    /// Bytes that were there already, from an earlier copy, and were not moved again.
    pub resumed: Bytes,
    /// Entries of folders that were left out: links, devices, sockets and pipes.
    pub skipped: u64,
    /// What went each leg of the way.
    pub legs: Vec<Leg>,
    /// All of it.
    pub receipt: Receipt,
}

/// What the threads of a copy share.
struct Watched {
    total: AtomicU64,
    moved: AtomicU64,
    resumed: AtomicU64,
    stop: AtomicBool,
    cancelled: AtomicBool,
    /// The stores that are asked.
    stores: Mutex<Vec<Weak<Store>>>,
}

impl Watched {
    fn stores(&self) -> MutexGuard<'_, Vec<Weak<Store>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.stop.store(true, Ordering::Release);
        // A store may take as long as it likes to answer.
        let stores = self.stores().clone();
        for store in stores.iter().filter_map(Weak::upgrade) {
            store.hang_up();
        }
    }
}

/// A running copy. Dropping it cancels.
pub struct Copy {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<Result<Copied, ServiceError>>>,
}

impl fmt::Debug for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copy({} of {})", self.moved(), self.total())
    }
}

impl Copy {
    /// Starts.
    ///
    /// # Errors
    /// When the two sides make no sense together, or a thread cannot be had. Whether they are there shows
    /// only in [`Copy::wait`].
    pub fn start(asked: Asked) -> Result<Self, ServiceError> {
        sensible(&asked)?;
        let watched = Arc::new(Watched {
            total: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            stores: Mutex::default(),
        });
        let shared = Arc::clone(&watched);
        let thread = std::thread::Builder::new()
            .name("crowfly-copy".into())
            .spawn(move || run(&asked, &shared))
            .map_err(|source| ServiceError::Setup {
                what: "starting a thread",
                source,
            })?;
        Ok(Self {
            watched,
            thread: Some(thread),
        })
    }

    /// Bytes to be copied, as far as is known yet.
    pub fn total(&self) -> Bytes {
        Bytes(self.watched.total.load(Ordering::Relaxed))
    }

    /// Bytes that have arrived so far, those of an earlier copy included.
    pub fn moved(&self) -> Bytes {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Bytes(of(&self.watched.moved) + of(&self.watched.resumed))
    }

    /// Whether it has ended, so that [`Copy::wait`] returns at once.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it early.
    pub fn cancel(&self) {
        self.watched.cancel();
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// What went wrong first.
    pub fn wait(mut self) -> Result<Copied, ServiceError> {
        let thread = self.thread.take();
        let died = || ServiceError::Storage(crate::error::TransferError::WorkerDied);
        let ended = thread.map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_else(|| Err(died()))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connects to the servers of both sides, as far as they are any. Between two servers the bytes go through
/// one set of buffers of this process, registered with both.
fn connect(
    asked: &Asked,
    dialing: &Dialing,
) -> Result<(Option<Client>, Option<Client>), ServiceError> {
    let dial = |side: &Side, dialing: &Dialing, access, buffers: Buffers<'_>| match side {
        Side::Served(location) => {
            let purpose = Purpose {
                access,
                policy: asked.policy,
                buffers,
            };
            Client::connect(location, dialing, &purpose).map(Some)
        }
        _ => Ok(None),
    };
    let arriving = match &asked.to {
        Side::Gpu(gpu) => Buffers::Gpu(gpu),
        _ => Buffers::Host,
    };
    let source = dial(&asked.from, dialing, Access::WRITE, arriving)?;
    let leaving = match (&asked.from, &source) {
        (Side::Loaded(region), _) => Buffers::Loaded(region),
        (_, Some(source)) => Buffers::Of(source),
        _ => Buffers::Host,
    };
    let goal = dial(&asked.to, &dialing.towards_goal(), Access::READ, leaving)?;
    Ok((source, goal))
}

fn run(asked: &Asked, watched: &Watched) -> Result<Copied, ServiceError> {
    let started = Instant::now();
    let mut dialing = asked.dialing.clone();
    if let Some(timeout) = asked.timeout {
        dialing.patience = dialing.patience.min(timeout);
    }
    if let Side::Gpu(gpu) = &asked.to {
        dialing.fabric.gpus.push(Arc::clone(gpu));
    }
    let (source, goal) = connect(asked, &dialing)?;
    let store = |side: &Side, settings: &StoreSettings| match side {
        Side::Object(url) => Store::at(settings, url).map(|store| Some(Arc::new(store))),
        _ => Ok(None),
    };
    let goal_settings = asked.store_of_goal();
    let from_store = store(&asked.from, &asked.store)?;
    let to_store = store(&asked.to, goal_settings)?;
    let stores = [&from_store, &to_store].into_iter().flatten();
    watched.stores().extend(stores.map(Arc::downgrade));
    if watched.cancelled.load(Ordering::Acquire) {
        // Whoever said so may have looked for stores before these were there.
        return Err(crate::error::TransferError::Cancelled.into());
    }
    let both = from_store.is_some() && to_store.is_some();
    let apart = match asked.policy {
        _ if !both => None,
        Policy::Socket => Some("the policy socket brings the bytes through this process"),
        _ => asked.store.apart(goal_settings),
    };
    let terms = Terms {
        source,
        goal,
        from_store,
        to_store,
        within: both && apart.is_none(),
        apart,
        here: match (&asked.from, &asked.to) {
            (Side::Loaded(region), _) => region.place(),
            (_, Side::Gpu(gpu)) => gpu.place(),
            _ => Place::Host(None),
        },
        replace: asked.replace,
        preserve: asked.preserve,
        verify: asked.verify,
        resume: asked.resume,
        policy: asked.policy,
        until: asked.timeout.map(|timeout| started + timeout),
        timeout: asked.timeout.unwrap_or_default(),
        watch: asked.watch.clone(),
    };
    let copied = all(asked, watched, started, &terms).or_else(|error| match error {
        // A request to a store that ended because all of the copy did.
        ServiceError::Object(_) if watched.cancelled.load(Ordering::Acquire) => {
            Err(crate::error::TransferError::Cancelled.into())
        }
        ServiceError::Object(_) => terms.in_time().and(Err(error)),
        other => Err(other),
    });
    if copied.is_err() {
        // A server that does not answer any more is not waited for to let go of the buffers.
        for client in [&terms.source, &terms.goal].into_iter().flatten() {
            client.leave();
        }
        let _ = std::thread::Builder::new()
            .name("crowfly-parting".into())
            .spawn(move || drop(terms));
    }
    copied
}

/// Copies all of it by connections that are there.
fn all(
    asked: &Asked,
    watched: &Watched,
    started: Instant,
    terms: &Terms,
) -> Result<Copied, ServiceError> {
    let Planned {
        files,
        folders,
        skipped,
    } = plan::files(asked, terms)?;
    let to = match (files.as_slice(), folders.as_slice()) {
        ([one], []) => one.to.place(asked),
        _ => asked.to.place(),
    };
    let total = files.iter().map(|file| file.size).sum();
    let largest = files.iter().map(|file| file.size).max().unwrap_or(0);
    watched.total.store(total, Ordering::Relaxed);
    let local;
    let clients = [&terms.source, &terms.goal];
    let windows = clients.iter().filter_map(|client| client.as_ref());
    let most = if terms.from_store.is_some() || terms.to_store.is_some() {
        STORE_WINDOW
    } else {
        WINDOW
    };
    let mut window = windows.map(Client::window).min().unwrap_or(most);
    if matches!(asked.to, Side::Object(_)) && !terms.within {
        window = at_a_time(largest, window);
    }
    let ring = match terms.source.as_ref().or(terms.goal.as_ref()) {
        Some(client) => client.ring(),
        None => {
            local = match (&asked.from, &asked.to) {
                (Side::Loaded(region), _) => Ring::for_loaded(window, region)?,
                (_, Side::Gpu(gpu)) => Ring::towards_gpu(window, gpu)?,
                _ => Ring::local(window)?,
            };
            &local
        }
    };
    let remember = terms.resume && !folders.is_empty();
    let folders = Folders::make(folders, terms)?;
    let batch = Batch::new(files, terms, watched, remember);
    batch.run(ring, window)?;
    let folders = folders.finish(terms)?;
    let Moved {
        whole,
        unchanged,
        confirmed,
        digests,
        legs,
    } = batch.done();
    let agreed = match (&asked.from, &asked.to) {
        (_, Side::Object(_)) => confirmed == whole,
        (from, to) => [from, to]
            .iter()
            .any(|side| matches!(side, Side::Served(_))),
    };
    let verification = verification(asked, &digests, agreed);
    let receipt = receipt(asked, &to, watched, started, verification, &legs);
    Ok(Copied {
        to,
        files: whole,
        unchanged,
        folders,
        resumed: Bytes(watched.resumed.load(Ordering::Relaxed)),
        skipped,
        legs: legs.all(),
        receipt,
    })
}

/// The account of all of it.
fn receipt(
    asked: &Asked,
    to: &Place,
    watched: &Watched,
    started: Instant,
    verification: Verification,
    legs: &Legs,
) -> Receipt {
    let visibility = legs.visibility();
    let legs = legs.all();
    let (from, to) = (asked.from.place(), to.clone());
    let route = route(&legs, &from, &to);
    let requested = Bytes(watched.moved.load(Ordering::Relaxed));
    let mut cpu = CpuSeconds::default();
    let mut obstacles: Vec<Obstacle> = Vec::new();
    for leg in &legs {
        cpu += leg.cpu;
        for obstacle in &leg.obstacles {
            if !obstacles.iter().any(|known| known.code == obstacle.code) {
                obstacles.push(obstacle.clone());
            }
        }
    }
    Receipt {
        schema: RECEIPT_SCHEMA.into(),
        policy: asked.policy,
        requested,
        shares: match requested {
            // What was only read, to be held against what is at the store, went nowhere.
            Bytes(0) => Vec::new(),
            _ => shares(&legs),
        },
        bounced: bounced(&legs),
        overread: legs.iter().map(|leg| leg.overread).sum(),
        retries: legs.iter().map(|leg| leg.retries).sum(),
        wall_seconds: started.elapsed().as_secs_f64(),
        cpu,
        ceiling: route.ceiling().map(|ceiling| ceiling.capacity),
        obstacles,
        visibility: visibility.unwrap_or_else(|| {
            Visibility::NotNeeded("host memory is coherent with the CPU and with DMA".into())
        }),
        verification,
        route,
        from,
        to,
    }
}

/// The bytes by path, of the leg that says most: across the fabric, or else into storage. Where the bytes
/// went several legs they lay in host memory in between, so that no path is more than staged for the
/// whole way, however straight each leg was.
fn shares(legs: &[Leg]) -> Vec<Share> {
    let moving = || legs.iter().filter(|leg| leg.bytes().0 > 0);
    let by = |doing| moving().find(|leg| leg.doing == doing);
    let worst = |leg: &&Leg| leg.shares.iter().map(|share| share.class).max();
    let crossings = [by(Doing::Crossing), by(Doing::Onward)];
    let crossing = crossings.into_iter().flatten().max_by_key(worst);
    let leg = crossing
        .or_else(|| by(Doing::Within))
        .or_else(|| by(Doing::Writing))
        .or_else(|| by(Doing::Reading));
    let mut shares = leg.map_or_else(Vec::new, |leg| leg.shares.clone());
    if moving().count() > 1 {
        let straight = moving().all(|leg| worst(&leg) == Some(Class::Direct));
        for share in shares.iter_mut().filter(|s| s.class == Class::Direct) {
            share.class = Class::Staged;
            share.because = Some(if straight { ALL_STRAIGHT } else { IN_BETWEEN }.into());
        }
    }
    shares
}

const ALL_STRAIGHT: &str =
    "every leg went straight; between the legs the bytes lay in host memory, as in every such copy";
const IN_BETWEEN: &str =
    "this leg went straight; between the legs the bytes lay in host memory, as in every such copy";

/// Bytes that lay in a buffer between two legs, or in one of a leg's own.
fn bounced(legs: &[Leg]) -> Bytes {
    let moving = || legs.iter().filter(|leg| leg.bytes().0 > 0);
    let mut sizes: Vec<Bytes> = moving().map(Leg::bytes).collect();
    sizes.sort_unstable();
    let between = match sizes.as_slice() {
        [] | [_] => Bytes(0),
        [first, ..] => *first,
    };
    let within = moving().map(|leg| leg.bounced).max();
    within.map_or(between, |within| within.max(between))
}

fn hex(sum: u64) -> String {
    format!("{sum:016x}")
}

/// Where a server is at one end, or a store that says what arrived, both ends made checksums and compared
/// them. Within this process there is but one, of the bytes as they were read.
fn verification(asked: &Asked, known: &[Option<Known>], agreed: bool) -> Verification {
    let all: Option<Vec<&Known>> = known.iter().map(Option::as_ref).collect();
    let Some(all) = all.filter(|all| asked.verify && !all.is_empty()) else {
        return Verification::NotAsked;
    };
    let (algorithm, checksum) = match all.as_slice() {
        [Known::Digest(one)] => (digest::ALGORITHM.to_owned(), hex(*one)),
        [Known::AtStore(one)] => (one.algorithm.to_owned(), one.checksum.clone()),
        many => {
            let at_store = |known: &&&Known| matches!(known, Known::AtStore(_));
            let algorithm = match many.iter().any(|known| at_store(&known)) {
                true => format!("{} of etags and checksums", digest::ALGORITHM),
                false => digest::ALGORITHM.to_owned(),
            };
            let sums = many.iter().map(|known| match known {
                Known::Digest(sum) => *sum,
                Known::AtStore(one) => digest::piece(one.checksum.as_bytes()),
            });
            (algorithm, hex(digest::whole(sums)))
        }
    };
    match agreed {
        true => Verification::Agreed {
            algorithm,
            checksum,
        },
        false => Verification::Computed {
            algorithm,
            checksum,
        },
    }
}
