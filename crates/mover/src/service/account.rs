//! What a copy's bytes did on their way, leg by leg: out of storage, across the fabric, into storage.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crowfly_route::hop::{Carrier, Class, CpuWork, Hop, HostUse, Route, Stop};
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::place::{Memory, Place};
use crowfly_route::receipt::{CpuSeconds, Path, Share, Visibility};
use crowfly_route::units::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::{MAX_ACCOUNT, MAX_OBSTACLES};
use super::ring::{Staging, through_host};
use crate::fabric::{Delivery, less_certain};
use crate::job::Ledger;
use crate::objects::{Object, ObjectUrl, Upload};
use crate::pass;

/// What a leg does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    /// Reads storage, or copies out of a GPU's memory what goes on by HTTP.
    Reading,
    /// Crosses the fabric.
    Crossing,
    /// Crosses the fabric a second time, from this process to the server that keeps the bytes.
    Onward,
    /// From object to object in a store, which does it by itself.
    Within,
    /// Writes storage, or copies into a GPU's memory what came by HTTP.
    Writing,
}

/// Which end did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The process that copies.
    Here,
    /// The server; of two the one that sends, and from the second crossing on the one that receives. Or the
    /// store that copies by itself.
    There,
}

/// One leg of the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leg {
    /// What it does.
    pub doing: Doing,
    /// Which end did it.
    pub end: End,
    /// Bytes by path; they sum to what went this leg.
    pub shares: Vec<Share>,
    /// CPU time that it took there.
    pub cpu: CpuSeconds,
    /// Requests that were made again.
    pub retries: u64,
    /// Bytes that devices moved beyond those asked for.
    pub overread: Bytes,
    /// Bytes that passed host memory on this leg beside its ends, as those of a GPU may have to.
    #[serde(default)]
    pub bounced: Bytes,
    /// The hops of the path that carried most.
    pub hops: Vec<Hop>,
    /// Why no better way was taken.
    pub obstacles: Vec<Obstacle>,
}

impl Leg {
    const fn new(doing: Doing, end: End) -> Self {
        Self {
            doing,
            end,
            shares: Vec::new(),
            cpu: CpuSeconds {
                user: 0.0,
                system: 0.0,
            },
            retries: 0,
            overread: Bytes(0),
            bounced: Bytes(0),
            hops: Vec::new(),
            obstacles: Vec::new(),
        }
    }

    /// Bytes that went this leg.
    pub fn bytes(&self) -> Bytes {
        self.shares.iter().map(|share| share.bytes).sum()
    }

    fn take(&mut self, other: Self) {
        for share in other.shares {
            let mut known = self.shares.iter_mut();
            match known.find(|known| (known.path, known.class) == (share.path, share.class)) {
                Some(known) => known.bytes += share.bytes,
                None => self.shares.push(share),
            }
        }
        self.cpu += other.cpu;
        self.retries += other.retries;
        self.overread += other.overread;
        self.bounced += other.bounced;
        if self.hops.is_empty() {
            self.hops = other.hops;
        }
        for obstacle in other.obstacles {
            if !self
                .obstacles
                .iter()
                .any(|known| known.code == obstacle.code)
            {
                self.obstacles.push(obstacle);
            }
        }
    }
}

const fn is_gpu(place: &Place) -> bool {
    matches!(place, Place::Gpu(_) | Place::Remote(Memory::Gpu(_)))
}

/// The legs of one copy, from the source to the destination.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    legs: Mutex<Vec<Leg>>,
    /// Whether the GPU that the bytes are for sees them; `None` where they are for host memory.
    visibility: Mutex<Option<Visibility>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Legs {
    fn legs(&self) -> MutexGuard<'_, Vec<Leg>> {
        locked(&self.legs)
    }

    /// What came of showing a part to the GPU whose memory it is in.
    pub(crate) fn shown(&self, said: Visibility) {
        let mut known = locked(&self.visibility);
        *known = Some(match known.take() {
            Some(before) => less_certain(before, said),
            None => said,
        });
    }

    /// Whether the GPU that the bytes are for sees them; `None` where they are for host memory.
    pub(crate) fn visibility(&self) -> Option<Visibility> {
        locked(&self.visibility).clone()
    }

    /// Adds to the leg that does the same at the same end.
    pub(crate) fn add(&self, leg: Leg) {
        let mut legs = self.legs();
        match legs
            .iter_mut()
            .find(|known| (known.doing, known.end) == (leg.doing, leg.end))
        {
            Some(known) => known.take(leg),
            None => {
                legs.push(leg);
                legs.sort_by_key(|leg| leg.doing);
            }
        }
    }

    /// A part came out of storage here, or went into it.
    pub(crate) fn stored(&self, doing: Doing, ledger: Ledger) {
        let mut leg = Leg::new(doing, End::Here);
        leg.shares = pass::shares(&ledger);
        leg.cpu = ledger.cpu;
        leg.retries = ledger.retries;
        leg.overread = Bytes(ledger.overread);
        let largest = leg.shares.iter().max_by_key(|share| share.bytes);
        leg.hops = largest.map_or(Vec::new(), |share| hops(doing, share.path));
        leg.obstacles = ledger.obstacles;
        self.add(leg);
    }

    /// A part crossed the fabric by a transfer of this end, the first time or the second.
    pub(crate) fn crossed(&self, doing: Doing, delivery: Delivery) {
        let receipt = delivery.into_receipt();
        self.add(Leg {
            doing,
            end: End::Here,
            shares: receipt.shares,
            cpu: receipt.cpu,
            retries: receipt.retries,
            overread: receipt.overread,
            bounced: match is_gpu(&receipt.from) || is_gpu(&receipt.to) {
                true => receipt.bounced,
                false => Bytes(0),
            },
            hops: receipt.route.hops,
            obstacles: receipt.obstacles,
        });
    }

    /// A part came out of an object store, by HTTP through this process.
    pub(crate) fn downloaded(&self, object: &Object, bytes: u64, cpu: CpuSeconds, retries: u64) {
        let mut leg = over_http_leg(Doing::Crossing, object.url(), bytes, object.is_encrypted());
        leg.cpu = cpu;
        leg.retries = retries;
        leg.hops = object_hops(object);
        self.add(leg);
    }

    /// A part went into an object store, by HTTP out of this process.
    pub(crate) fn uploaded(
        &self,
        doing: Doing,
        upload: &Upload,
        bytes: u64,
        cpu: CpuSeconds,
        (retries, apart): (u64, Option<&'static str>),
    ) {
        let mut leg = over_http_leg(doing, upload.url(), bytes, upload.is_encrypted());
        if let (Some(apart), [share]) = (apart, leg.shares.as_mut_slice()) {
            let because = share.because.take().unwrap_or_default();
            share.because = Some(format!("{because}; {apart}"));
        }
        leg.cpu = cpu;
        leg.retries = retries;
        leg.hops = upload_hops(upload);
        self.add(leg);
    }

    /// A part went between a buffer of this process and a GPU's memory, by the GPU's copy engine.
    pub(crate) fn staged(&self, doing: Doing, staging: &Staging, bytes: u64, cpu: CpuSeconds) {
        let mut leg = Leg::new(doing, End::Here);
        let because = staging.unpinned().first();
        leg.shares = vec![Share {
            path: Path::GpuCopy,
            class: match because {
                None => Class::Direct,
                Some(_) => Class::Staged,
            },
            bytes: Bytes(bytes),
            because: because.map(|obstacle| obstacle.summary.clone()),
        }];
        leg.cpu = cpu;
        leg.hops = staging_hops(doing, staging.gpu());
        leg.obstacles = vec![through_host(&Place::Gpu(staging.gpu()))];
        leg.obstacles.extend(staging.unpinned().iter().cloned());
        self.add(leg);
    }

    /// A store copied a part by itself; asking it to took this process so much time.
    pub(crate) fn within(&self, upload: &Upload, bytes: u64, cpu: CpuSeconds, retries: u64) {
        let mut leg = Leg::new(Doing::Within, End::There);
        leg.shares = vec![Share {
            path: Path::Store,
            class: Class::Staged,
            bytes: Bytes(bytes),
            because: Some(UNSEEN.into()),
        }];
        leg.obstacles = vec![unseen(upload.url())];
        leg.cpu = cpu;
        leg.retries = retries;
        leg.hops = hops_within(upload.url());
        self.add(leg);
    }

    /// CPU time of work that belongs to a leg, such as checksums.
    pub(crate) fn worked(&self, doing: Doing, cpu: CpuSeconds) {
        let mut leg = Leg::new(doing, End::Here);
        leg.cpu = cpu;
        self.add(leg);
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> Vec<Leg> {
        self.legs().clone()
    }

    /// As JSON for the other end, short enough to be read there.
    pub(crate) fn to_json(&self) -> String {
        let mut legs = self.all();
        for leg in &mut legs {
            leg.obstacles.truncate(MAX_OBSTACLES);
        }
        let text = |legs: &[Leg]| serde_json::to_string(legs).unwrap_or_default();
        let told = text(&legs);
        if told.len() <= MAX_ACCOUNT {
            return told;
        }
        for leg in &mut legs {
            leg.obstacles.clear();
        }
        let told = text(&legs);
        if told.len() <= MAX_ACCOUNT {
            told
        } else {
            String::new()
        }
    }

    /// What the other end told, seen from here: its crossing is the first or the second.
    pub(crate) fn told(&self, json: &str, crossing: Doing) {
        let legs: Vec<Leg> = serde_json::from_str(json).unwrap_or_default();
        for mut leg in legs {
            leg.end = End::There;
            if leg.doing == Doing::Crossing {
                leg.doing = crossing;
            }
            leg.hops = leg.hops.into_iter().map(from_here).collect();
            self.add(leg);
        }
    }
}

/// A hop that the other end told, as it looks from here.
fn from_here(hop: Hop) -> Hop {
    Hop {
        from: mirrored(hop.from),
        to: mirrored(hop.to),
        ..hop
    }
}

fn mirrored(stop: Stop) -> Stop {
    match stop {
        Stop::Remote { stop } => *stop,
        Stop::Network => Stop::Network,
        here => Stop::Remote {
            stop: Box::new(here),
        },
    }
}

/// A leg by HTTP, and why it went no straighter.
fn over_http_leg(doing: Doing, url: &ObjectUrl, bytes: u64, encrypted: bool) -> Leg {
    let mut leg = Leg::new(doing, End::Here);
    let because = match encrypted {
        true => "the store speaks HTTP over TLS",
        false => "the store speaks HTTP",
    };
    leg.shares = vec![Share {
        path: Path::Tcp,
        class: Class::Socket,
        bytes: Bytes(bytes),
        because: Some(because.into()),
    }];
    leg.obstacles = vec![over_http(url)];
    leg
}

/// Why bytes of an object go no straighter.
pub(crate) fn over_http(url: &ObjectUrl) -> Obstacle {
    Obstacle::blocks(
        Code::ObjectStore,
        "the store speaks HTTP over TCP: the bytes pass the kernel's network stack and a CPU core",
    )
    .seen("URL", url.to_string())
}

const UNSEEN: &str =
    "the store copied them by itself and none passed this process; how is not seen from here";

/// Why what a store does by itself counts as no straighter.
pub(crate) fn unseen(url: &ObjectUrl) -> Obstacle {
    Obstacle::blocks(
        Code::ObjectStore,
        "the store copies by itself: nothing tells from outside whether its bytes go straight",
    )
    .seen("URL", url.to_string())
}

/// Within a store: taken to pass the memory of its servers, as nothing says that they do not.
fn hops_within(url: &ObjectUrl) -> Vec<Hop> {
    let store = || Stop::Store {
        name: url.to_string(),
    };
    let memory = || Stop::Remote {
        stop: Box::new(Stop::Host {
            use_: HostUse::Bounce,
            numa: None,
        }),
    };
    let inside = || Carrier::Wire {
        fabric: "within the store".into(),
    };
    vec![
        Hop::bare(store(), memory(), inside()),
        Hop::bare(memory(), store(), inside()),
    ]
}

/// From a store into a buffer of this process: into the kernel's, out of it, decrypted where need be, and
/// copied to their place.
fn object_hops(object: &Object) -> Vec<Hop> {
    let host = |use_| Stop::Host { use_, numa: None };
    let cpu = |work| Carrier::Cpu { work };
    let store = Stop::Store {
        name: object.url().to_string(),
    };
    let kernel = host(HostUse::SocketBuffer);
    let bounce = || host(HostUse::Bounce);
    let nic = Carrier::Dma {
        device: "nic".into(),
    };
    let mut hops = vec![
        Hop::bare(store, kernel.clone(), nic),
        Hop::bare(kernel, bounce(), cpu(CpuWork::KernelCopy)),
    ];
    if object.is_encrypted() {
        hops.push(Hop::bare(bounce(), bounce(), cpu(CpuWork::Crypto)));
    }
    let memory = host(HostUse::Application);
    hops.push(Hop::bare(bounce(), memory, cpu(CpuWork::UserCopy)));
    hops
}

/// From a buffer of this process into a store: gathered to a part, encrypted where need be, into the
/// kernel's buffers, and out of them.
fn upload_hops(upload: &Upload) -> Vec<Hop> {
    let host = |use_| Stop::Host { use_, numa: None };
    let cpu = |work| Carrier::Cpu { work };
    let bounce = || host(HostUse::Bounce);
    let gathered = cpu(CpuWork::UserCopy);
    let mut hops = vec![Hop::bare(host(HostUse::Application), bounce(), gathered)];
    if upload.is_encrypted() {
        hops.push(Hop::bare(bounce(), bounce(), cpu(CpuWork::Crypto)));
    }
    let kernel = host(HostUse::SocketBuffer);
    hops.push(Hop::bare(
        bounce(),
        kernel.clone(),
        cpu(CpuWork::KernelCopy),
    ));
    let store = Stop::Store {
        name: upload.url().to_string(),
    };
    let nic = Carrier::Dma {
        device: "nic".into(),
    };
    hops.push(Hop::bare(kernel, store, nic));
    hops
}

/// Between a buffer of this process and a GPU's memory.
fn staging_hops(doing: Doing, index: u32) -> Vec<Hop> {
    let gpu = Stop::Gpu { index };
    let host = Stop::Host {
        use_: HostUse::Application,
        numa: None,
    };
    let engine = Carrier::Dma {
        device: format!("gpu{index}"),
    };
    match doing {
        Doing::Reading => vec![Hop::bare(gpu, host, engine)],
        _ => vec![Hop::bare(host, gpu, engine)],
    }
}

/// The hops of a storage path.
fn hops(doing: Doing, path: Path) -> Vec<Hop> {
    let drive = || Stop::Drive {
        name: "drive".into(),
    };
    let host = |use_| Stop::Host { use_, numa: None };
    let hop = Hop::bare;
    let dma = || Carrier::Dma {
        device: "drive".into(),
    };
    let copy = Carrier::Cpu {
        work: CpuWork::KernelCopy,
    };
    let (memory, cache) = (HostUse::Application, HostUse::PageCache);
    match (doing, path) {
        (Doing::Reading, Path::Cached) => vec![
            hop(drive(), host(cache), dma()),
            hop(host(cache), host(memory), copy),
        ],
        (Doing::Reading, _) => vec![hop(drive(), host(memory), dma())],
        (_, Path::Cached) => vec![
            hop(host(memory), host(cache), copy),
            hop(host(cache), drive(), dma()),
        ],
        _ => vec![hop(host(memory), drive(), dma())],
    }
}

/// The whole way as one route.
pub(crate) fn route(legs: &[Leg], from: &Place, to: &Place) -> Route {
    let name = |leg: &Leg| {
        let largest = leg.shares.iter().max_by_key(|share| share.bytes);
        largest.map(|share| share.path.as_str())
    };
    let names: Vec<&str> = legs.iter().filter_map(name).collect();
    Route {
        name: match names.is_empty() {
            true => "none".into(),
            false => names.join("+"),
        },
        from: from.clone(),
        to: to.clone(),
        hops: legs.iter().flat_map(|leg| leg.hops.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg(doing: Doing, bytes: u64) -> Leg {
        Leg {
            shares: vec![Share {
                path: Path::Cached,
                class: Class::Staged,
                bytes: Bytes(bytes),
                because: None,
            }],
            hops: hops(doing, Path::Cached),
            ..Leg::new(doing, End::Here)
        }
    }

    #[test]
    fn legs_come_in_the_order_of_the_bytes_and_the_same_leg_is_one() {
        let legs = Legs::default();
        legs.add(leg(Doing::Writing, 3));
        legs.add(leg(Doing::Reading, 5));
        legs.add(leg(Doing::Reading, 7));
        let all = legs.all();
        let told: Vec<_> = all.iter().map(|leg| (leg.doing, leg.bytes().0)).collect();
        assert_eq!(told, [(Doing::Reading, 12), (Doing::Writing, 3)]);
    }

    #[test]
    fn what_the_other_end_did_is_told_as_seen_from_here() {
        let there = Legs::default();
        there.add(leg(Doing::Reading, 5));
        let here = Legs::default();
        here.told(&there.to_json(), Doing::Crossing);
        let all = here.all();
        assert_eq!((all[0].end, all[0].bytes()), (End::There, Bytes(5)));
        assert!(
            all[0]
                .hops
                .iter()
                .all(|hop| matches!(hop.from, Stop::Remote { .. }))
        );
        here.told("[{\"no\": \"leg\"}]", Doing::Crossing);
        here.told("garbage", Doing::Crossing);
        assert_eq!(here.all(), all, "what is no account changes nothing");
    }
}
