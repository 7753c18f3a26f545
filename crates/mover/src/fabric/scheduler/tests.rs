//! Which rails carry what, over links that take everything and end nothing by themselves.

use std::collections::BTreeMap;

use crowfly_route::fixture::machines::dgx_h100;
use crowfly_route::hop::Route;
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path, Visibility};
use crowfly_route::units::{Bytes, NumaNode};

use super::*;
use crate::fabric::descriptor::RegionDescriptor;
use crate::fabric::gate::Gate;
use crate::fabric::identity::Capability;
use crate::fabric::memory::Buffer;
use crate::fabric::nics::Nearness;
use crate::fabric::plan::Kind;
use crate::fabric::port::PortCount;
use crate::fabric::provider::{
    Chore, Limits, Link, Op, Posted, Refusal, Registration, Release, Run, Short, Shortcut, Verb,
};
use crate::fabric::rail::NicLoad;
use crate::fabric::region::{Access, RegionCore, Registered, Registrations};
use crate::fabric::transfer::{Checked, Delivery};

mod accounts;
mod at_once;
mod failing;
mod sharing;

use at_once::Answers;

const MIB: u64 = 1 << 20;

/// A link that keeps what it is given.
struct Kept {
    path: Path,
    nic: String,
    ops: Mutex<Vec<Op>>,
    /// What its port has counted as sent; `None` where it has no counters.
    counted: Mutex<Option<u64>>,
    /// Whether it is at its end and has not said so yet.
    dead: std::sync::atomic::AtomicBool,
    /// Bytes whose move was left to the thread that started the transfer, and which that thread saw to.
    left: Arc<Mutex<u64>>,
    /// What it answers to short transfers that it could carry out at once, if it could.
    at_once: Arc<Answers>,
    /// CPU time that it says to have used.
    used: Mutex<f64>,
    /// What happens while it is being closed.
    closing: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Link for Kept {
    fn path(&self) -> Path {
        self.path
    }
    fn nic(&self) -> &str {
        &self.nic
    }
    fn limits(&self) -> Limits {
        Limits {
            op_bytes: 64 << 10,
            segments: 1,
            ops: 4096,
            bytes: 1 << 40,
            imm_once: true,
        }
    }
    fn reaches(
        &self,
        _: Option<&RegionCore>,
        _: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>> {
        Ok(())
    }
    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        Route {
            name: "kept".into(),
            from,
            to,
            hops: Vec::new(),
        }
    }
    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        if self.dead.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Refusal::Failed(OpError::Rail("no lane is left".into())));
        }
        self.ops.lock().expect("no panic").push(op);
        Ok(Posted::InFlight)
    }
    fn post_here(&self, op: Op, chores: &mut Vec<Chore>) -> Result<Posted, Refusal> {
        let (left, bytes) = (Arc::clone(&self.left), op.bytes());
        chores.push(Box::new(move || *left.lock().expect("no panic") += bytes));
        self.post(op)
    }
    fn shortcut(&self, _: &RegionCore, _: &RegionDescriptor) -> Option<Box<dyn Shortcut>> {
        Some(Box::new(Arc::clone(&self.at_once)))
    }
    fn cancel(&self, _: OpId) -> Release {
        Release::Now
    }
    fn cpu(&self) -> CpuSeconds {
        CpuSeconds {
            user: *self.used.lock().expect("no panic"),
            system: 0.0,
        }
    }
    fn close(&self) {
        let closing = self.closing.lock().expect("no panic").take();
        if let Some(closing) = closing {
            closing();
        }
    }
    fn port_counters(&self) -> Result<PortCount, String> {
        let counted = self.counted.lock().expect("no panic");
        let sent = counted.ok_or("it has no counters")?;
        Ok(PortCount {
            received: Bytes(0),
            sent: Bytes(sent),
        })
    }
}

struct World {
    scheduler: Arc<Scheduler>,
    links: Vec<Arc<Kept>>,
}

impl World {
    /// Rails by path, NIC and weight, on a machine whose distances are known.
    fn new(rails: &[(Path, &str, f64)]) -> Self {
        Self::sharing(rails, &Arc::default())
    }

    fn sharing(rails: &[(Path, &str, f64)], load: &Arc<NicLoad>) -> Self {
        let machine = Arc::new(dgx_h100().topology());
        let scheduler =
            Scheduler::new(Incarnation::from_bytes([7; 16]), Duration::from_millis(500));
        let mut links = Vec::new();
        for (slot, (path, nic, weight)) in (0u16..).zip(rails) {
            let link = Arc::new(Kept {
                path: *path,
                nic: (*nic).to_owned(),
                ops: Mutex::default(),
                counted: Mutex::new(Some(0)),
                dead: false.into(),
                left: Arc::default(),
                at_once: Arc::default(),
                used: Mutex::default(),
                closing: Mutex::default(),
            });
            let rail = Rail {
                slot,
                path: *path,
                nic: (*nic).to_owned(),
                weight: *weight,
                nearness: Arc::new(Nearness::of(nic, Some(&machine))),
                // The first rail is the one whose NIC others use as well.
                load: if slot == 0 {
                    Arc::clone(load)
                } else {
                    Arc::default()
                },
                link: Arc::clone(&link) as _,
            };
            scheduler.add_rail(RailId(u32::from(slot)), rail, Class::Direct);
            links.push(link);
        }
        let scheduler = Arc::new(scheduler);
        Self { scheduler, links }
    }

    fn write(&self, bytes: u64, node: Option<u32>) -> Arc<Slot> {
        self.start(Verb::Write, region(bytes, node), bytes)
    }

    fn start(&self, verb: Verb, local: Arc<RegionCore>, bytes: u64) -> Arc<Slot> {
        let order = Order {
            verb,
            remote: Some(local.descriptor.clone()),
            local: Some(local),
            runs: vec![Run {
                local: 0,
                remote: 0,
                len: bytes,
            }],
            imm: None,
            policy: Policy::Prefer,
            allowed: Duration::from_secs(1),
        };
        let slot = Arc::new(Slot::default());
        self.scheduler.start(order, &slot, Duration::ZERO);
        slot
    }

    /// Bytes that each link was given, by NIC.
    fn given(&self) -> BTreeMap<&str, u64> {
        let bytes = |link: &Kept| -> u64 {
            let ops = link.ops.lock().expect("no panic");
            ops.iter().map(Op::bytes).sum()
        };
        self.links
            .iter()
            .map(|l| (l.nic.as_str(), bytes(l)))
            .collect()
    }

    /// Everything ends well; the ports count what `counts` makes of the bytes they were given.
    fn finish(&self, slot: &Slot, counts: impl Fn(&str, u64) -> Option<u64>) -> Delivery {
        for (rail, link) in (0u32..).zip(&self.links) {
            let ops = std::mem::take(&mut *link.ops.lock().expect("no panic"));
            let bytes = ops.iter().map(Op::bytes).sum();
            *link.counted.lock().expect("no panic") = counts(&link.nic, bytes);
            for op in ops {
                let at = Duration::from_millis(1);
                self.scheduler.completed(RailId(rail), op.id, Ok(()), at);
            }
        }
        slot.take().expect("it ended").expect("and well")
    }
}

fn region(bytes: u64, node: Option<u32>) -> Arc<RegionCore> {
    let len = usize::try_from(bytes).expect("small");
    let place = Place::Host(node.map(NumaNode));
    let buffer = Buffer::claiming(len, place.clone());
    Arc::new(RegionCore {
        descriptor: RegionDescriptor::new(
            Incarnation::from_bytes([7; 16]),
            bytes,
            Access::READ_WRITE,
            place,
            Capability::from_bytes([2; 16]),
            Vec::new(),
        ),
        backing: buffer.into_backing(),
        gate: Gate::default(),
        registrations: Registrations::default(),
    })
}

const BOTH_SOCKETS: [(Path, &str, f64); 4] = [
    (Path::Verbs, "mlx5_0:1", 50e9),
    (Path::Verbs, "mlx5_1:1", 50e9),
    (Path::Verbs, "mlx5_4:1", 50e9),
    (Path::Verbs, "mlx5_5:1", 50e9),
];
