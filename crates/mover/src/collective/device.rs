//! Collectives of GPUs' memory, done by NCCL among the ranks of a [`Group`].
//!
//! The group gives the ranks what NCCL needs to find each other, and what NCCL does not have: a time
//! limit for everything, an error that says which rank is gone, and going on without it. Calls are
//! queued on a stream and carried out in its order; [`DeviceGroup::wait`] ends one and answers its
//! receipt, with what NCCL's own log says of the way, and what it tells its profiler ([`NcclAccount`]).
//!
//! Not run on hardware so far: what is here was tried against a library and GPUs that are made up.

mod account;
mod calls;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_machine::gpu::{InFlight, Stream};
use crowfly_machine::nccl::{
    Communicator, Functions, Kind, Member, NcclError, Operation, Part, UniqueId,
};
use crowfly_route::collective::Collective;
use crowfly_route::units::Bytes;

use super::choose::Algorithm;
use super::element::Element;
use super::error::CollectiveError;
use super::group::arguments::bad;
use super::group::{CallOptions, Group};
use super::patience::grace;
use super::receipt::{COLLECTIVE_SCHEMA, CollectiveReceipt};
use super::reduce::Reduction;
use account::Log;
pub use account::{Evidence, NcclAccount, NcclLink};
pub use calls::{NcclCall, NcclCalls};

/// The ranks that do collectives of GPUs' memory together, each with a GPU and a stream of its own.
///
/// All must make the same calls in the same order. After a failure no call is made any more; the
/// ranks that are left can go on ([`DeviceGroup::shrink`]).
pub struct DeviceGroup {
    host: Group,
    communicator: Arc<Communicator>,
    stream: Arc<Stream>,
    log: Log,
    /// Calls so far.
    number: u64,
    because: Arc<str>,
    failure: Option<CollectiveError>,
}

impl fmt::Debug for DeviceGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceGroup({:?}, {:?})", self.host, self.communicator)
    }
}

/// A collective that was queued. Dropping it waits for the GPU.
#[must_use = "dropping it waits for the GPU, without its receipt"]
#[derive(Debug)]
pub struct Queued {
    work: InFlight,
    began: Instant,
    allowed: Duration,
    receipt: CollectiveReceipt,
}

impl Queued {
    /// Whether the GPU is done with it.
    ///
    /// # Errors
    /// When the GPU failed.
    pub fn is_done(&self) -> Result<bool, CollectiveError> {
        Ok(self.work.is_done().map_err(NcclError::from)?)
    }
}

/// What a call is about, for its receipt.
struct Task {
    collective: Collective,
    element: Element,
    reduction: Option<Reduction>,
    size: usize,
}

impl Task {
    /// One that moves numbers as they are, `size` bytes as nccl-tests counts them; with what NCCL calls
    /// their kind.
    fn moving(
        collective: Collective,
        element: Element,
        size: usize,
    ) -> Result<(Self, Kind), CollectiveError> {
        let task = Self {
            collective,
            element,
            reduction: None,
            size,
        };
        Ok((task, kind(collective, element)?))
    }

    /// One that reduces them; with what NCCL calls kind and reduction.
    fn reducing(
        collective: Collective,
        (element, reduction): (Element, Reduction),
        size: usize,
    ) -> Result<(Self, (Kind, Operation)), CollectiveError> {
        let (task, kind) = Self::moving(collective, element, size)?;
        let task = Self {
            reduction: Some(reduction),
            ..task
        };
        Ok((task, (kind, operation(collective, reduction)?)))
    }
}

impl DeviceGroup {
    /// Forms the group of the ranks of `host`, with the GPU of `stream`; all of them call it.
    ///
    /// # Errors
    /// [`CollectiveError`]; where NCCL fails at one rank, all others hear which.
    pub fn form(
        mut host: Group,
        functions: &Arc<Functions>,
        stream: Arc<Stream>,
        options: CallOptions,
    ) -> Result<Self, CollectiveError> {
        let log = Log::begin(host.rank(), host.size());
        let version = functions.version();
        // A byte that says whether there is an identity, and the identity.
        let mut told = [0u8; 1 + size_of::<UniqueId>()];
        let mut refused = version.as_ref().err().cloned();
        if host.rank() == 0 && refused.is_none() {
            match functions.new_id() {
                Ok(id) => {
                    let (flag, bytes) = told.split_at_mut(1);
                    flag.fill(1);
                    bytes.copy_from_slice(id.bytes());
                }
                Err(error) => refused = Some(error),
            }
        }
        host.broadcast(&mut told, 0, Element::U8, options)?;
        let [flag, bytes @ ..] = &told;
        let mut id = UniqueId::ZERO;
        id.bytes_mut().copy_from_slice(bytes);
        let member = Member {
            rank: host.rank(),
            ranks: host.size(),
        };
        let joined = match (refused, *flag) {
            (Some(error), _) => Err(CollectiveError::Nccl(error)),
            (None, 0) => Err(CollectiveError::NotJoined { rank: 0 }),
            (None, _) => {
                // The rest is for hearing of each other, where one of them failed at once.
                let time = options.allowed() / 2;
                Communicator::join(functions, stream.gpu(), id, member, time)
                    .map_err(CollectiveError::Nccl)
            }
        };
        let communicator = agreed(&mut host, joined, options)?;
        let library = functions.library.clone();
        let version = account::version_text(version.unwrap_or_default());
        Ok(Self {
            because: format!("memory of GPUs goes by NCCL, {library} {version}").into(),
            log: log.of(library, version),
            host,
            communicator,
            stream,
            number: 0,
            failure: None,
        })
    }

    /// This process's number in the group.
    pub const fn rank(&self) -> usize {
        self.host.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.host.size()
    }

    /// The ranks as a group for host memory. What it does is in no order with what is queued here.
    pub const fn host(&mut self) -> &mut Group {
        &mut self.host
    }

    /// The stream that calls are queued on.
    pub const fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Why the group makes no call any more, if it does not.
    pub const fn failure(&self) -> Option<&CollectiveError> {
        self.failure.as_ref()
    }

    /// Reduces everyone's numbers into one result, which everyone has in `data` afterwards.
    ///
    /// # Errors
    /// [`CollectiveError`]; the bytes must be a whole number of elements.
    pub fn all_reduce(
        &mut self,
        data: Part,
        element: Element,
        reduction: Reduction,
        options: CallOptions,
    ) -> Result<Queued, CollectiveError> {
        let (collective, size) = (Collective::AllReduce, data.range.len());
        let (task, how) = Task::reducing(collective, (element, reduction), size)?;
        self.queue(task, options, |communicator, stream, time| {
            communicator.all_reduce(stream, (data.clone(), data), how, time)
        })
    }

    /// Reduces everyone's `input`, a part for each rank one after the other; `output` is this rank's
    /// part of the result.
    ///
    /// # Errors
    /// [`CollectiveError`]; `input` must be as long as `output` times the ranks.
    pub fn reduce_scatter(
        &mut self,
        input: Part,
        output: Part,
        element: Element,
        reduction: Reduction,
        options: CallOptions,
    ) -> Result<Queued, CollectiveError> {
        let (collective, size) = (Collective::ReduceScatter, input.range.len());
        let (task, how) = Task::reducing(collective, (element, reduction), size)?;
        self.queue(task, options, |communicator, stream, time| {
            communicator.reduce_scatter(stream, (input, output), how, time)
        })
    }

    /// Gathers everyone's `input`; `output` has them all, in the order of the ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; `output` must be as long as `input` times the ranks.
    pub fn all_gather(
        &mut self,
        input: Part,
        output: Part,
        element: Element,
        options: CallOptions,
    ) -> Result<Queued, CollectiveError> {
        let size = output.range.len();
        let (task, kind) = Task::moving(Collective::AllGather, element, size)?;
        self.queue(task, options, |communicator, stream, time| {
            communicator.all_gather(stream, (input, output), kind, time)
        })
    }

    /// Gives everyone what `root` has in `data`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn broadcast(
        &mut self,
        data: Part,
        root: usize,
        element: Element,
        options: CallOptions,
    ) -> Result<Queued, CollectiveError> {
        let (collective, size) = (Collective::Broadcast, data.range.len());
        let (task, kind) = Task::moving(collective, element, size)?;
        if root >= self.size() {
            let what = format!("there is no rank {root} among {}", self.size());
            return Err(bad(collective, what));
        }
        self.queue(task, options, |communicator, stream, time| {
            communicator.broadcast(stream, data, root, kind, time)
        })
    }

    /// Sends each rank its part of `input` and receives one from each into `output`; all parts are of
    /// the same size.
    ///
    /// # Errors
    /// [`CollectiveError`]; both must be of the same length, a whole number of elements for each
    /// rank.
    pub fn all_to_all(
        &mut self,
        input: Part,
        output: Part,
        element: Element,
        options: CallOptions,
    ) -> Result<Queued, CollectiveError> {
        let (collective, size) = (Collective::AllToAll, output.range.len());
        let (task, kind) = Task::moving(collective, element, size)?;
        let ranks = self.size();
        if input.range.len() != size || !size.is_multiple_of(ranks * element.size()) {
            let what = format!(
                "{} bytes to {size}: not as many {element} for each of {ranks} ranks",
                input.range.len()
            );
            return Err(bad(collective, what));
        }
        let parts = |whole: &Part| {
            let (start, each) = (whole.range.start, size / ranks);
            let of = |rank: usize| start + rank * each..start + (rank + 1) * each;
            let parts = (0..ranks).map(|rank| (rank, Part::of(&whole.memory, of(rank))));
            parts.collect::<Vec<_>>()
        };
        let (sends, receives) = (parts(&input), parts(&output));
        self.queue(task, options, |communicator, stream, time| {
            communicator.exchange(stream, sends, receives, kind, time)
        })
    }

    fn queue(
        &mut self,
        task: Task,
        options: CallOptions,
        call: impl FnOnce(&Communicator, &Stream, Duration) -> Result<InFlight, NcclError>,
    ) -> Result<Queued, CollectiveError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if let Some(asked) = options.algorithm.filter(|asked| *asked != Algorithm::Nccl) {
            let what = format!("NCCL chooses by itself, and cannot be told to go by {asked}");
            return Err(bad(task.collective, what));
        }
        if options.wide {
            let what = "NCCL cannot be told in which precision to sum".to_owned();
            return Err(bad(task.collective, what));
        }
        let (began, allowed) = (Instant::now(), options.allowed());
        let work = match call(&self.communicator, &self.stream, allowed) {
            Ok(work) => work,
            // Nothing was queued.
            Err(error @ (NcclError::Length { .. } | NcclError::Gpu(_))) => return Err(error.into()),
            Err(error) => return Err(self.failed(error, allowed)),
        };
        self.number += 1;
        Ok(Queued {
            work,
            began,
            allowed,
            receipt: CollectiveReceipt {
                schema: COLLECTIVE_SCHEMA,
                collective: task.collective,
                element: task.element,
                reduction: task.reduction,
                wide: false,
                size: Bytes(task.size as u64),
                number: self.number,
                rank: self.rank(),
                ranks: self.size(),
                hosts: self.host.hosts().len(),
                algorithm: Algorithm::Nccl,
                because: Arc::clone(&self.because),
                // NCCL counts nothing by its ways; which there are, its account says.
                moved: Vec::new(),
                chunks: 0,
                seconds: 0.0,
                waited: 0.0,
                nccl: None,
            },
        })
    }

    /// Waits for a call, within the time it was given when it was queued.
    ///
    /// # Errors
    /// The same at all ranks that are left, where a rank is lost. Where NCCL failed with all ranks
    /// there, each gets what its own NCCL says.
    pub fn wait(&mut self, queued: Queued) -> Result<CollectiveReceipt, CollectiveError> {
        let left = queued.allowed.saturating_sub(queued.began.elapsed());
        // What is left for agreeing on a failure comes out of the same time.
        let left = left.saturating_sub(grace(queued.allowed));
        if let Err(error) = self.communicator.wait(queued.work, left) {
            return Err(self.failed(error, queued.allowed));
        }
        let mut receipt = queued.receipt;
        receipt.seconds = queued.began.elapsed().as_secs_f64();
        receipt.nccl = Some(Box::new(self.log.account(self.rank())));
        Ok(receipt)
    }

    /// Ends the group's calls: after a failure NCCL's communicator is of no use any more.
    fn failed(&mut self, error: NcclError, allowed: Duration) -> CollectiveError {
        self.communicator.abort();
        // A rank that is gone shows at the others as a network error, or not at all. The group knows
        // better: who is there comes to a barrier.
        let agreed = match error.is_of_another() {
            true => {
                let met = self.host.barrier(CallOptions::within(grace(allowed)));
                met.err()
            }
            false => None,
        };
        let error = agreed.unwrap_or(CollectiveError::Nccl(error));
        self.failure.get_or_insert(error).clone()
    }

    /// Forms a group of the ranks that are left after a failure; all of them call it.
    ///
    /// # Errors
    /// When not all of those come in time, and as for [`DeviceGroup::form`].
    pub fn shrink(&mut self, options: CallOptions) -> Result<Self, CollectiveError> {
        self.communicator.abort();
        self.failure.get_or_insert(CollectiveError::Abandoned);
        let host = self.host.shrink(options)?;
        let functions = Arc::clone(self.communicator.functions());
        Self::form(host, &functions, Arc::clone(&self.stream), options)
    }
}

/// What a rank says of its joining.
const FAILED: u8 = 0;
const JOINED: u8 = 1;
const WAITED: u8 = 2;

/// Has all ranks know whether all have joined, and if not, whose fault that is.
fn agreed(
    host: &mut Group,
    joined: Result<Arc<Communicator>, CollectiveError>,
    options: CallOptions,
) -> Result<Arc<Communicator>, CollectiveError> {
    let word = match &joined {
        Ok(_) => JOINED,
        Err(CollectiveError::Nccl(NcclError::Late { .. })) => WAITED,
        Err(_) => FAILED,
    };
    let mut words = vec![0u8; host.size()];
    host.all_gather(&[word], &mut words, Element::U8, options)?;
    let who = |word: u8| words.iter().position(|said| *said == word);
    match (who(FAILED), who(WAITED), joined) {
        (None, None, joined) => joined,
        (_, _, Err(own)) if word == FAILED => Err(own),
        // Who waited did so for the one that failed.
        (Some(rank), _, joined) => {
            joined.iter().for_each(|joined| joined.abort());
            Err(CollectiveError::NotJoined { rank })
        }
        (None, Some(_), Err(own)) => Err(own),
        (None, Some(rank), Ok(joined)) => {
            joined.abort();
            Err(CollectiveError::NotJoined { rank })
        }
    }
}

fn kind(collective: Collective, element: Element) -> Result<Kind, CollectiveError> {
    Ok(match element {
        Element::F32 => Kind::F32,
        Element::F64 => Kind::F64,
        Element::F16 => Kind::F16,
        Element::Bf16 => Kind::Bf16,
        Element::I8 => Kind::I8,
        Element::I32 => Kind::I32,
        Element::I64 => Kind::I64,
        Element::U8 => Kind::U8,
        _ => return Err(bad(collective, format!("NCCL has no {element}"))),
    })
}

fn operation(collective: Collective, reduction: Reduction) -> Result<Operation, CollectiveError> {
    Ok(match reduction {
        Reduction::Sum => Operation::Sum,
        Reduction::Min => Operation::Min,
        Reduction::Max => Operation::Max,
        Reduction::Mean => Operation::Mean,
        Reduction::Product => Operation::Product,
        _ => {
            return Err(bad(
                collective,
                format!("NCCL cannot reduce by {reduction}"),
            ));
        }
    })
}
