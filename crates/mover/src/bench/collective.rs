//! How fast collectives are among the ranks of a group, and whether their results are right.

use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::collective::Collective;
use serde::Serialize;

use crate::collective::{
    CallOptions, CollectiveError, CollectiveReceipt, Element, Group, Reduction, SharedBuffer,
    narrow,
};
use crate::fabric::FabricError;
use crate::memory::zeros;

/// The largest buffer of one rank.
pub const MAX_COLLECTIVE: u64 = 1 << 30;
/// The most calls of one sample.
const MAX_CALLS: u64 = 100_000;

/// What is measured; the same at all ranks.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveCase {
    /// What is done.
    pub collective: Collective,
    /// On what kind of numbers.
    pub element: Element,
    /// How they are reduced, where they are.
    pub reduction: Reduction,
    /// The whole buffer of one rank, as nccl-tests counts it; rounded down to what ranks can share.
    pub size: u64,
    /// Whether an all-reduce works on the group's own memory ([`Group::buffer`]), instead of on memory
    /// of the program's.
    pub shared: bool,
    /// How each call is done.
    pub options: CallOptions,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveSample {
    /// Numbers of the whole buffer.
    pub count: u64,
    /// How many calls followed each other.
    pub calls: u64,
    /// Seconds of one call: all calls of the slowest rank, divided.
    pub seconds: f64,
    /// CPU seconds of one call, over all ranks.
    pub cpu_seconds: f64,
    /// Numbers that were wrong in the first call, over all ranks.
    pub wrong: u64,
    /// The receipt of this rank's last call.
    pub receipt: CollectiveReceipt,
}

/// The buffers of a case.
struct Buffers {
    case: CollectiveCase,
    input: Vec<u8>,
    output: Vec<u8>,
    /// What an all-reduce works on instead of `output`, where that was asked for.
    shared: Option<SharedBuffer>,
    /// Numbers of one rank's part.
    part: usize,
}

/// Small whole numbers, of which every kind holds the sums over many ranks.
const fn value(element: Element, rank: usize, at: usize) -> i64 {
    let kinds = if element.size() > 2 { 5 } else { 2 };
    ((rank * 7 + at * 3) % kinds) as i64
}

fn encode(element: Element, value: f64, into: &mut [u8]) {
    let whole = value as i64;
    match element {
        Element::F32 => into.copy_from_slice(&(value as f32).to_le_bytes()),
        Element::F64 => into.copy_from_slice(&value.to_le_bytes()),
        Element::F16 | Element::Bf16 => narrow(element, &(value as f32).to_le_bytes(), into),
        Element::I8 | Element::U8 => into.copy_from_slice(&whole.to_le_bytes()[..1]),
        Element::I16 => into.copy_from_slice(&whole.to_le_bytes()[..2]),
        Element::I32 => into.copy_from_slice(&whole.to_le_bytes()[..4]),
        Element::I64 => into.copy_from_slice(&whole.to_le_bytes()),
    }
}

/// What a reduction of the ranks' numbers at one place is.
fn reduced(element: Element, reduction: Reduction, ranks: usize, at: usize) -> f64 {
    let all = (0..ranks).map(|rank| value(element, rank, at));
    let sum: i64 = all.clone().sum();
    let word = |one: i64, other: i64| match reduction {
        Reduction::And => one & other,
        Reduction::Or => one | other,
        Reduction::Xor => one ^ other,
        _ => one.wrapping_mul(other),
    };
    let is_float = matches!(element, Element::F32 | Element::F64) || element.is_half();
    match reduction {
        Reduction::Sum => sum as f64,
        Reduction::Min => all.min().unwrap_or_default() as f64,
        Reduction::Max => all.max().unwrap_or_default() as f64,
        Reduction::Mean if is_float => sum as f64 / ranks as f64,
        Reduction::Mean => (sum / ranks as i64) as f64,
        _ => all.reduce(word).unwrap_or_default() as f64,
    }
}

impl Buffers {
    fn new(case: CollectiveCase, group: &mut Group) -> Result<Self, CollectiveError> {
        let (n, size) = (group.size(), case.element.size());
        let whole = usize::try_from(case.size).unwrap_or(usize::MAX) / size;
        let shared = matches!(
            case.collective,
            Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll
        );
        let part = if shared { (whole / n).max(1) } else { whole };
        let (ins, outs) = match case.collective {
            Collective::AllReduce | Collective::Broadcast => (part, part),
            Collective::ReduceScatter => (part * n, part),
            Collective::AllGather => (part, part * n),
            Collective::AllToAll => (part * n, part * n),
            Collective::Barrier => (0, 0),
        };
        let mut input = zeros(ins * size).map_err(FabricError::from)?;
        for (at, number) in input.chunks_exact_mut(size).enumerate() {
            encode(
                case.element,
                value(case.element, group.rank(), at) as f64,
                number,
            );
        }
        let output: Vec<u8> = zeros(outs * size).map_err(FabricError::from)?;
        let wanted = case.shared && case.collective == Collective::AllReduce;
        let shared = wanted.then(|| group.buffer(output.len(), case.options));
        Ok(Self {
            case,
            input,
            output,
            shared: shared.transpose()?,
            part,
        })
    }

    /// Puts what the next call works on in place, where it works in place.
    fn put(&mut self, numbers: impl Fn(&[u8], &mut [u8])) -> Result<(), CollectiveError> {
        numbers(&self.input, &mut self.output);
        match &mut self.shared {
            Some(shared) => shared.write(0, &self.output),
            None => Ok(()),
        }
    }

    fn count(&self) -> u64 {
        (self.input.len().max(self.output.len()) / self.case.element.size()) as u64
    }

    /// One call; in place where the collective is, on whatever is in `output` by then.
    fn call(&mut self, group: &mut Group) -> Result<CollectiveReceipt, CollectiveError> {
        let CollectiveCase {
            collective,
            element,
            reduction,
            options,
            ..
        } = self.case;
        let (input, output) = (&self.input, &mut self.output);
        match collective {
            Collective::AllReduce => match &mut self.shared {
                Some(shared) => {
                    group.all_reduce_in(shared, 0..output.len(), element, reduction, options)
                }
                None => group.all_reduce(output, element, reduction, options),
            },
            Collective::Broadcast => group.broadcast(output, 0, element, options),
            Collective::ReduceScatter => {
                group.reduce_scatter(input, output, element, reduction, options)
            }
            Collective::AllGather => group.all_gather(input, output, element, options),
            Collective::AllToAll => group.all_to_all(input, output, element, options),
            Collective::Barrier => group.barrier(options),
        }
    }

    /// What belongs at a place of the output after one call.
    fn wanted(&self, group: &Group, at: usize) -> f64 {
        let CollectiveCase {
            collective,
            element,
            reduction,
            ..
        } = self.case;
        let (n, me, part) = (group.size(), group.rank(), self.part.max(1));
        let from = |rank: usize, at: usize| value(element, rank, at) as f64;
        match collective {
            Collective::AllReduce => reduced(element, reduction, n, at),
            Collective::ReduceScatter => reduced(element, reduction, n, me * part + at),
            Collective::AllGather => from(at / part, at % part),
            Collective::AllToAll => from(at / part, me * part + at % part),
            Collective::Broadcast | Collective::Barrier => from(0, at),
        }
    }

    /// Numbers of the output that are not what they should be.
    fn wrong(&mut self, group: &Group) -> Result<u64, CollectiveError> {
        if let Some(shared) = &self.shared {
            shared.read(0, &mut self.output)?;
        }
        let size = self.case.element.size();
        let mut wanted = vec![0; size];
        let mut wrong = 0;
        for (at, number) in self.output.chunks_exact(size).enumerate() {
            encode(self.case.element, self.wanted(group, at), &mut wanted);
            wrong += u64::from(number != wanted);
        }
        Ok(wrong)
    }
}

/// The sum, or the greatest, of a number over all ranks.
fn over_all(
    group: &mut Group,
    number: f64,
    reduction: Reduction,
    options: CallOptions,
) -> Result<f64, CollectiveError> {
    let mut bytes = number.to_le_bytes();
    group.all_reduce(&mut bytes, Element::F64, reduction, options)?;
    Ok(f64::from_le_bytes(bytes))
}

/// Measures a case for about `time`, after one call whose result is looked at. All ranks call it.
///
/// # Errors
/// As for a collective, and when there is no memory for the buffers.
pub fn collective(
    group: &mut Group,
    case: CollectiveCase,
    time: Duration,
) -> Result<CollectiveSample, CollectiveError> {
    let plain = CallOptions {
        algorithm: None,
        ..case.options
    };
    let mut buffers = Buffers::new(case, group)?;
    let in_place = matches!(
        case.collective,
        Collective::AllReduce | Collective::Broadcast
    );
    if in_place {
        buffers.put(|input, output| output.copy_from_slice(input))?;
    }
    let mut receipt = buffers.call(group)?;
    let wrong = buffers.wrong(group)? as f64;
    let wrong = over_all(group, wrong, Reduction::Sum, plain)?;
    // What an all-reduce made of it would grow without end.
    if in_place {
        buffers.put(|_, output| output.fill(0))?;
    }
    let began = Instant::now();
    buffers.call(group)?;
    let once = over_all(group, began.elapsed().as_secs_f64(), Reduction::Max, plain)?;
    // All ranks work out the same from the same number.
    let calls = (time.as_secs_f64() / once.max(1e-9)) as u64;
    let calls = calls.clamp(1, MAX_CALLS);
    group.barrier(plain)?;
    let (cpu, began) = (usage::this_process(), Instant::now());
    for _ in 0..calls {
        receipt = buffers.call(group)?;
    }
    let (took, spent) = (began.elapsed(), usage::this_process());
    let took = over_all(group, took.as_secs_f64(), Reduction::Max, plain)?;
    let spent = over_all(group, spent.total() - cpu.total(), Reduction::Sum, plain)?;
    Ok(CollectiveSample {
        count: buffers.count(),
        calls,
        seconds: took / calls as f64,
        cpu_seconds: spent / calls as f64,
        wrong: wrong as u64,
        receipt,
    })
}
