//! The one copy, by the thread that asks or by one that copies.

use super::*;
use crate::fabric::gate::Pass;

/// The memories that runs are copied between.
struct Ends<'a> {
    verb: Verb,
    local: &'a RegionCore,
    mapped: &'a Mapped,
    caches: Caches,
    second: Option<&'a Duo>,
}

/// Why a link that was closed moves nothing more.
fn closed() -> OpError {
    OpError::Rail("the link was closed".into())
}

/// Copies by the threads that start transfers, of which none is posted.
pub(super) struct ByCaller {
    pub link: Arc<ShmLink>,
    pub mapped: Arc<Mapped>,
}

impl Shortcut for ByCaller {
    fn is_open(&self) -> bool {
        !self.link.gate.is_closed() && !self.mapped.gate.is_closed()
    }

    fn carry(&self, short: &Short<'_>, pass: Pass<'_>) -> Option<Result<CpuSeconds, OpError>> {
        let Self { link, mapped } = self;
        let open = pass.through(&link.gate) && pass.through(&mapped.gate);
        if !open || link.conn.is_broken() {
            return None;
        }
        if !pass.through(&short.local.gate) {
            return Some(Err(OpError::Op(FabricError::Deregistered)));
        }
        let ends = Ends {
            verb: short.verb,
            local: short.local,
            mapped,
            caches: Caches::Keep,
            second: Some(link.copier.second()),
        };
        let mut helped = CpuSeconds::default();
        for run in short.runs {
            let mut done = 0;
            while done < run.len {
                match link.copy_step(&ends, *run, &mut done) {
                    Ok(more) => helped += more,
                    Err(error) => return Some(Err(error)),
                }
            }
        }
        Some(Ok(helped))
    }
}

impl ShmLink {
    /// Copies an op's bytes.
    pub(super) fn copy(&self, op: &Op, mapped: &Mapped) -> Result<(), OpError> {
        let local = op.local.as_ref();
        let local = local.ok_or(OpError::Op(FabricError::Deregistered))?;
        // Only a transfer of twice that size or more is cut into pieces so large.
        let caches = if op.bytes() >= u64::from(OP_BYTES) {
            Caches::Pass
        } else {
            Caches::Keep
        };
        let ends = Ends {
            verb: op.verb,
            local: &local.region,
            mapped,
            caches,
            second: None,
        };
        let mut segments = op.segments.iter().map(|segment| Run {
            local: segment.local,
            remote: segment.remote,
            len: u64::from(segment.len),
        });
        segments.try_for_each(|run| self.copy_run(&ends, &local.flight, run))
    }

    /// Copies a run step by step, each inside the gates of everything that it touches.
    fn copy_run(&self, ends: &Ends<'_>, flight: &Gate, run: Run) -> Result<(), OpError> {
        let mut done = 0;
        while done < run.len {
            // What ends is the link and not the transfer, which may have another way.
            let _link = self.gate.enter().ok_or_else(closed)?;
            let _theirs = ends.mapped.gate.enter().ok_or_else(|| self.gone())?;
            let ours_gone = || OpError::Op(FabricError::Deregistered);
            let _ours = ends.local.gate.enter().ok_or_else(ours_gone)?;
            let ended = || OpError::Op(FabricError::Cancelled);
            let _flight = flight.enter().ok_or_else(ended)?;
            self.copy_step(ends, run, &mut done)?;
        }
        Ok(())
    }

    fn gone(&self) -> OpError {
        OpError::Op(FabricError::NoSuchRegion { peer: self.peer })
    }

    /// Copies one step of a run, from the byte on up to which it is done, inside all gates; answers what the
    /// help of a second core cost.
    fn copy_step(&self, ends: &Ends<'_>, run: Run, done: &mut u64) -> Result<CpuSeconds, OpError> {
        let memory = ends.mapped.memory.as_ref().ok_or_else(|| self.gone())?;
        let step = STEP.min(run.len - *done);
        let part = |start: u64| {
            let start = usize::try_from(start.checked_add(*done)?).ok()?;
            Some(start..start.checked_add(usize::try_from(step).ok()?)?)
        };
        let ours = part(run.local).and_then(|range| ends.local.backing().part(range));
        let theirs = part(run.remote).and_then(|range| memory.part(range));
        let outside = || {
            OpError::Op(FabricError::OutOfBounds {
                start: run.remote,
                end: run.remote.saturating_add(run.len),
                len: memory.len() as u64,
            })
        };
        let (ours, theirs) = ours.zip(theirs).ok_or_else(outside)?;
        let (copied, what) = match ends.verb {
            Verb::Write => (
                ours.copy_to(theirs, ends.caches, ends.second),
                "remote writes",
            ),
            Verb::Read => (
                theirs.copy_to(ours, ends.caches, ends.second),
                "local writes",
            ),
        };
        let helped = copied.map_err(|error| {
            OpError::Op(match error.kind() {
                std::io::ErrorKind::PermissionDenied => FabricError::NotAllowed { what },
                _ => FabricError::GpuFailed {
                    gpu: ends.local.backing().place().to_string(),
                    why: error.to_string(),
                },
            })
        })?;
        *done += step;
        Ok(helped)
    }

    /// Copies an op's bytes and sees to its value; `Some` when that is its end.
    pub(super) fn carry_out(&self, op: &Op, mapped: &Mapped) -> Option<Result<(), OpError>> {
        let (result, cpu) = stint(|| self.copy(op, mapped));
        self.cpu.add(cpu);
        if result.is_ok() && op.imm.is_some() {
            self.tell(op);
            return None;
        }
        Some(result)
    }

    /// Sends an op's value; the answer ends the op.
    pub(super) fn tell(&self, op: &Op) {
        let imm = op.imm.map(|(imm, flight)| (imm.0, flight.0));
        let nothing = Capability::from_bytes([0; 16]);
        let body = wire::Access::new(nothing, imm, &[]).encode();
        {
            let mut state = self.state();
            if state.ops.contains_key(&op.id.0) {
                state.told.insert(op.id.0);
            }
        }
        self.conn.send(Frame::new(Kind::Write, op.id.0, body));
    }

    /// Carries out an op whose region is mapped, in a thread that copies.
    pub(super) fn dispatch(&self, op: Op, mapped: Arc<Mapped>) {
        if let Some(chore) = self.chore(op, mapped) {
            self.copier.push(chore);
        }
    }

    /// Carrying out an op whose region is mapped; whoever does it holds no lock of the engine.
    pub(super) fn chore(&self, op: Op, mapped: Arc<Mapped>) -> Option<Chore> {
        let this = self.this.upgrade()?;
        Some(Box::new(move || {
            if !this.state().ops.contains_key(&op.id.0) {
                return;
            }
            if let Some(result) = this.carry_out(&op, &mapped) {
                this.ended(op.id.0, result);
            }
        }))
    }
}
