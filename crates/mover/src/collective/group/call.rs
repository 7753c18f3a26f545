//! The collectives.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_route::collective::Collective;
use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;

use super::arguments::{bad, fits, numbers, parts};
use super::plan::{Parts, Plan, Wanted};
use super::{CallOptions, Group};
use crate::collective::call::Call;
use crate::collective::choose::{Algorithm, Choice, in_place};
use crate::collective::element::Element;
use crate::collective::error::CollectiveError;
use crate::collective::execute::{Work, execute};
use crate::collective::flat::Rule;
use crate::collective::lane::{Moved, count};
use crate::collective::patience::{Patience, Waiting};
use crate::collective::receipt::{COLLECTIVE_SCHEMA, CollectiveReceipt};
use crate::collective::reduce::{self, Reduction};
use crate::collective::shared::{Memory, SHARED_ALIGNMENT, SharedBuffer};
use crate::fabric::{Backing, FabricError};
use crate::memory::{copy_into, fill_up};

/// What a call works on.
enum Data<'a> {
    /// One buffer, in which the result is.
    Here(&'a mut [u8]),
    /// From one buffer to another.
    FromTo(&'a [u8], &'a mut [u8]),
    /// A range of the buffers of all ranks.
    Mapped(&'a [Arc<Backing>], Range<usize>),
}

/// All that a call is about.
struct Task<'a> {
    collective: Collective,
    element: Element,
    reduction: Option<Reduction>,
    root: Option<usize>,
    /// What nccl-tests calls the size, in bytes.
    size: usize,
    /// Numbers: of the whole buffer for all-reduce and broadcast, of one rank's part otherwise.
    count: usize,
    data: Data<'a>,
    /// Of an all-to-all with parts of different sizes: those to each rank, and those from each.
    parts: Option<Parts<'a>>,
    /// The number of the group's buffer that it is in, and where, in units of [`SHARED_ALIGNMENT`].
    buffer: Option<(u32, u32)>,
}

impl<'a> Task<'a> {
    /// One that reduces nothing, begins at no rank and has parts of one size.
    const fn new(
        collective: Collective,
        element: Element,
        size: usize,
        count: usize,
        data: Data<'a>,
    ) -> Self {
        Self {
            collective,
            element,
            reduction: None,
            root: None,
            size,
            count,
            data,
            parts: None,
            buffer: None,
        }
    }
}

impl Group {
    /// Reduces everyone's numbers into one result, which everyone has in `data` afterwards.
    ///
    /// # Errors
    /// [`CollectiveError`]; the bytes must be a whole number of elements.
    pub fn all_reduce(
        &mut self,
        data: &mut [u8],
        element: Element,
        reduction: Reduction,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        let count = numbers(Collective::AllReduce, data.len(), element)?;
        self.call(
            Task {
                reduction: Some(reduction),
                ..Task::new(
                    Collective::AllReduce,
                    element,
                    data.len(),
                    count,
                    Data::Here(data),
                )
            },
            options,
        )
    }

    /// As [`Group::all_reduce`], of a range of the group's own memory. Where all ranks are on one host
    /// nothing is copied: each reduces its share in everyone's buffer.
    ///
    /// # Errors
    /// [`CollectiveError`]; all ranks must give the same range of the same buffer, which begins at a
    /// multiple of [`SHARED_ALIGNMENT`].
    pub fn all_reduce_in(
        &mut self,
        buffer: &mut SharedBuffer,
        range: Range<usize>,
        element: Element,
        reduction: Reduction,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        let collective = Collective::AllReduce;
        let count = numbers(collective, range.len(), element)?;
        if buffer.group != self.id {
            return Err(bad(collective, "the buffer is of another group".to_owned()));
        }
        buffer.usable(&range)?;
        let place = u32::try_from(range.start / SHARED_ALIGNMENT).map_err(|_| {
            let what = format!("byte {} of a shared buffer is too far in", range.start);
            bad(collective, what)
        })?;
        let (number, size) = (buffer.number, range.len());
        match &mut buffer.memory {
            Memory::Own(own) => {
                let data = own.as_mut_slice().and_then(|all| all.get_mut(range));
                self.all_reduce(data.unwrap_or_default(), element, reduction, options)
            }
            Memory::Shared { all, .. } => self.call(
                Task {
                    reduction: Some(reduction),
                    buffer: Some((number, place)),
                    ..Task::new(collective, element, size, count, Data::Mapped(all, range))
                },
                options,
            ),
        }
    }

    /// Reduces everyone's `input`, a part for each rank one after the other; `output` is this rank's
    /// part of the result.
    ///
    /// # Errors
    /// [`CollectiveError`]; `input` must be as long as `output` times the ranks.
    pub fn reduce_scatter(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        element: Element,
        reduction: Reduction,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        let collective = Collective::ReduceScatter;
        let count = numbers(collective, output.len(), element)?;
        fits(collective, input.len(), output.len() * self.size())?;
        self.call(
            Task {
                reduction: Some(reduction),
                ..Task::new(
                    collective,
                    element,
                    input.len(),
                    count,
                    Data::FromTo(input, output),
                )
            },
            options,
        )
    }

    /// Gathers everyone's `input`; `output` has them all, in the order of the ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; `output` must be as long as `input` times the ranks.
    pub fn all_gather(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        element: Element,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        let collective = Collective::AllGather;
        let count = numbers(collective, input.len(), element)?;
        fits(collective, output.len(), input.len() * self.size())?;
        self.call(
            Task::new(
                collective,
                element,
                output.len(),
                count,
                Data::FromTo(input, output),
            ),
            options,
        )
    }

    /// Gives everyone what `root` has in `data`.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn broadcast(
        &mut self,
        data: &mut [u8],
        root: usize,
        element: Element,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        let collective = Collective::Broadcast;
        let count = numbers(collective, data.len(), element)?;
        if root >= self.size() {
            let what = format!("there is no rank {root} among {}", self.size());
            return Err(bad(collective, what));
        }
        self.call(
            Task {
                root: Some(root),
                ..Task::new(collective, element, data.len(), count, Data::Here(data))
            },
            options,
        )
    }

    /// Sends each rank its part of `input` and receives one from each into `output`; all parts are of
    /// the same size.
    ///
    /// # Errors
    /// [`CollectiveError`]; both must be of the same length, a whole number of elements for each
    /// rank.
    pub fn all_to_all(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        element: Element,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        let collective = Collective::AllToAll;
        fits(collective, output.len(), input.len())?;
        let part = output.len() / self.size();
        let count = numbers(collective, part, element)?;
        fits(collective, output.len(), part * self.size())?;
        let parts: Vec<Range<usize>> = (0..self.size())
            .map(|r| r * count..(r + 1) * count)
            .collect();
        self.call(
            Task {
                parts: Some((&parts, &parts)),
                ..Task::new(
                    collective,
                    element,
                    output.len(),
                    count,
                    Data::FromTo(input, output),
                )
            },
            options,
        )
    }

    /// As [`Group::all_to_all`], with parts of any sizes: `to[r]` numbers for rank `r`, one part after
    /// the other, and `from[r]` numbers from it.
    ///
    /// # Errors
    /// [`CollectiveError`]; the sums must be the lengths of the buffers, and what one rank expects
    /// must be what the other sends.
    pub fn all_to_all_v(
        &mut self,
        (input, to): (&[u8], &[usize]),
        (output, from): (&mut [u8], &[usize]),
        element: Element,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        let collective = Collective::AllToAll;
        let to = parts(to, self.size(), input.len(), element)?;
        let from = parts(from, self.size(), output.len(), element)?;
        let options = CallOptions {
            algorithm: Some(options.algorithm.unwrap_or(Algorithm::Direct)),
            ..options
        };
        self.call(
            Task {
                parts: Some((&to, &from)),
                // What it is differs from rank to rank.
                ..Task::new(
                    collective,
                    element,
                    output.len(),
                    usize::MAX,
                    Data::FromTo(input, output),
                )
            },
            options,
        )
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn barrier(&mut self, options: CallOptions) -> Result<CollectiveReceipt, CollectiveError> {
        self.call(
            Task::new(Collective::Barrier, Element::U8, 0, 0, Data::Here(&mut [])),
            options,
        )
    }

    fn call(
        &mut self,
        task: Task<'_>,
        options: CallOptions,
    ) -> Result<CollectiveReceipt, CollectiveError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let started = Instant::now();
        let (collective, ranks) = (task.collective, self.size());
        if let Some(reduction) = task.reduction.filter(|how| !how.suits(task.element)) {
            let what = format!("the {reduction} of {} is none", task.element);
            return Err(bad(collective, what));
        }
        let costs = &self.costs;
        let asked = options.algorithm;
        let call = (collective, task.size, asked);
        let choice = match task.buffer {
            Some(_) => in_place(asked),
            None => self.chosen.or_choose(call, &self.hosts, ranks, costs),
        };
        let Some(choice) = choice else {
            let asked = asked.map_or("", Algorithm::as_str);
            let hosts = self.hosts.len();
            let hosts = if hosts == 1 {
                "one host".into()
            } else {
                format!("{hosts} hosts")
            };
            let what = format!("{ranks} ranks on {hosts} cannot do it by {asked}");
            return Err(bad(collective, what));
        };
        let wide = options.wide && task.element.is_half() && task.reduction.is_some();
        self.number += 1;
        let mut call = Call::new(collective, task.element, task.count);
        if let Some(reduction) = task.reduction {
            call = call.reducing(reduction, wide);
        }
        call.root = task
            .root
            .and_then(|root| u32::try_from(root).ok())
            .unwrap_or(u32::MAX);
        if let Some((number, place)) = task.buffer {
            (call.root, call.place) = (number, place);
        }
        let way = Algorithm::ALL
            .iter()
            .position(|way| *way == choice.algorithm);
        call.way = way.map_or(0, |way| way as u32);
        self.council.enter(self.number, call);
        if let Some(Some(arena)) = self.near.get(self.me) {
            crate::collective::arena::say_entry(arena, &self.layout, self.number, &call);
        }
        let (element, reduction, size) = (task.element, task.reduction, task.size);
        let done = self.carry_out(task, &choice, call, wide, (started, options.allowed()));
        let (chunks, waited) = match done {
            Ok(done) => done,
            Err(error) => {
                self.failure = Some(error.clone());
                return Err(error);
            }
        };
        let mut moved = Moved::new();
        for lane in self.lanes.iter_mut().flatten() {
            lane.moved(&mut moved);
        }
        if let Some(flat) = &mut self.flat {
            count(&mut moved, Path::Shm, std::mem::take(&mut flat.taken));
        }
        moved.retain(|moved| moved.bytes.0 > 0);
        moved.sort_by_key(|moved| moved.path);
        Ok(CollectiveReceipt {
            schema: COLLECTIVE_SCHEMA,
            collective,
            element,
            reduction,
            wide,
            size: Bytes(size as u64),
            number: self.number,
            rank: self.me,
            ranks,
            hosts: self.hosts.len(),
            algorithm: choice.algorithm,
            because: choice.because,
            moved,
            chunks,
            seconds: started.elapsed().as_secs_f64(),
            waited: waited.as_secs_f64(),
            nccl: None,
        })
    }

    /// Moves and reduces; answers chunks sent and the time spent waiting.
    fn carry_out(
        &mut self,
        task: Task<'_>,
        choice: &Choice,
        call: Call,
        wide: bool,
        (began, allowed): (Instant, Duration),
    ) -> Result<(u64, Duration), CollectiveError> {
        let (me, ranks) = (self.me, self.size());
        let rule = Rule {
            element: task.element,
            reduction: task.reduction.unwrap_or(Reduction::Sum),
            wide,
            ranks,
        };
        let mut patience = Patience::new(Waiting {
            council: &self.council,
            fabric: &self.mesh.fabric,
            near: &self.near,
            layout: self.layout,
            neighbours: &self.neighbours,
            number: self.number,
            call,
            rank: me,
            roomy: self.roomy,
            allowed,
            began,
        });
        if ranks == 1 {
            alone(task.data);
            return Ok((0, patience.waited));
        }
        if let (Data::Mapped(buffers, range), Some(flat)) = (&task.data, &mut self.flat) {
            flat.reduce_in_place(buffers, range, rule, &mut patience)?;
            return Ok((0, patience.waited));
        }
        if let (Algorithm::Flat, Some(flat)) = (choice.algorithm, &mut self.flat) {
            let patience = &mut patience;
            match (task.collective, task.data) {
                (Collective::AllReduce, Data::Here(data)) => flat.all_reduce(data, rule, patience),
                (Collective::Broadcast, Data::Here(data)) => {
                    flat.broadcast(data, task.root.unwrap_or_default(), patience)
                }
                (Collective::ReduceScatter, Data::FromTo(input, output)) => {
                    flat.reduce_scatter(input, output, rule, patience)
                }
                (Collective::AllGather, Data::FromTo(input, output)) => {
                    flat.all_gather(input, output, patience)
                }
                (Collective::AllToAll, Data::FromTo(input, output)) => {
                    flat.all_to_all(input, output, task.element.size(), patience)
                }
                _ => flat.barrier(patience),
            }?;
            return Ok((0, patience.waited));
        }
        // Sums of half precision go round in single precision, twice as long.
        let element = if wide { Element::F32 } else { task.element };
        let plan = Plan {
            group: self.members.len(),
            me,
            hosts: &self.hosts,
            chunk: self.chunk(task.collective, element),
            span: self.span(element),
        };
        let actions = plan.schedule(&Wanted {
            collective: task.collective,
            algorithm: choice.algorithm,
            count: task.count,
            root: task.root.unwrap_or_default(),
            parts: task.parts,
        });
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut run = |input: Option<&[u8]>, buffer: &mut [u8]| {
            let work = Work {
                input,
                buffer,
                element,
                reduction: rule.reduction,
                ranks,
                call,
            };
            execute(&mut self.lanes, &actions, work, &mut patience)
        };
        let part = |rank: usize, len: usize| rank * len..(rank + 1) * len;
        let chunks = match (task.collective, task.data) {
            // Memory is mapped by all where all share one host, and those have boards.
            (_, Data::Mapped(..)) => Ok(0),
            (_, Data::Here(data)) if wide => {
                fill_up(&mut scratch, 2 * data.len()).map_err(FabricError::from)?;
                reduce::widen(task.element, data, &mut scratch);
                let chunks = run(None, &mut scratch);
                reduce::narrow(task.element, &scratch, data);
                chunks
            }
            (_, Data::Here(data)) => run(None, data),
            (Collective::ReduceScatter, Data::FromTo(input, output)) => {
                let len = output.len();
                if wide {
                    fill_up(&mut scratch, 2 * input.len()).map_err(FabricError::from)?;
                    reduce::widen(task.element, input, &mut scratch);
                } else {
                    copy_into(&mut scratch, input).map_err(FabricError::from)?;
                }
                let chunks = run(None, &mut scratch);
                if wide {
                    let mine = scratch.get(part(me, 2 * len)).unwrap_or_default();
                    reduce::narrow(task.element, mine, output);
                } else {
                    copy(scratch.get(part(me, len)), output);
                }
                chunks
            }
            (Collective::AllGather, Data::FromTo(input, output)) => {
                copy(
                    Some(input),
                    output.get_mut(part(me, input.len())).unwrap_or_default(),
                );
                run(None, output)
            }
            (_, Data::FromTo(input, output)) => {
                if let Some((to, from)) = task.parts
                    && let (Some(to), Some(from)) = (to.get(me), from.get(me))
                {
                    let size = element.size();
                    let bytes = |part: &Range<usize>| part.start * size..part.end * size;
                    copy(
                        input.get(bytes(to)),
                        output.get_mut(bytes(from)).unwrap_or_default(),
                    );
                }
                run(Some(input), output)
            }
        };
        self.scratch = scratch;
        Ok((chunks?, patience.waited))
    }
}

/// One rank's own numbers are the result.
fn alone(data: Data<'_>) {
    if let Data::FromTo(input, output) = data {
        copy(Some(input), output);
    }
}

fn copy(from: Option<&[u8]>, to: &mut [u8]) {
    if let Some(from) = from.filter(|from| from.len() == to.len()) {
        to.copy_from_slice(from);
    }
}
