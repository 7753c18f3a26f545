//! The one copy, by the thread that asks or by one that copies.

use super::*;

impl ShmLink {
    /// Copies an op's bytes.
    pub(super) fn copy(&self, op: &Op, mapped: &Mapped) -> Result<(), FabricError> {
        let gone = FabricError::NoSuchRegion { peer: self.peer };
        let memory = mapped.memory.as_ref().ok_or(gone.clone())?;
        let local = op.local.as_ref().ok_or(FabricError::Deregistered)?;
        // Only a transfer of twice that size or more is cut into pieces so large.
        let caches = if op.bytes() >= u64::from(OP_BYTES) {
            Caches::Pass
        } else {
            Caches::Keep
        };
        for segment in &op.segments {
            let mut done = 0;
            while done < segment.len {
                let step = STEP.min(segment.len - done);
                let part = |start: u64| {
                    let start = usize::try_from(start + u64::from(done)).ok()?;
                    Some(start..start.checked_add(step as usize)?)
                };
                let ours = part(segment.local).and_then(|range| local.region.span(range));
                let theirs = part(segment.remote).and_then(|range| memory.span(range));
                let (Some(ours), Some(theirs)) = (ours, theirs) else {
                    return Err(FabricError::OutOfBounds {
                        start: segment.remote,
                        end: segment.remote + u64::from(segment.len),
                        len: memory.len() as u64,
                    });
                };
                let _link = self.gate.enter().ok_or(FabricError::Cancelled)?;
                let _theirs = mapped.gate.enter().ok_or(gone.clone())?;
                let _ours = local.region.gate.enter().ok_or(FabricError::Deregistered)?;
                let _flight = local.flight.enter().ok_or(FabricError::Cancelled)?;
                let copied = match op.verb {
                    Verb::Write => ours.copy_to(&theirs, caches),
                    Verb::Read => theirs.copy_to(&ours, caches),
                };
                let what = match op.verb {
                    Verb::Write => "remote writes",
                    Verb::Read => "local writes",
                };
                copied.map_err(|error| match error.kind() {
                    std::io::ErrorKind::PermissionDenied => FabricError::NotAllowed { what },
                    _ => FabricError::GpuFailed {
                        gpu: local.region.backing().place().to_string(),
                        why: error.to_string(),
                    },
                })?;
                done += step;
            }
        }
        Ok(())
    }

    /// Copies an op's bytes and sees to its value; `Some` when that is its end.
    pub(super) fn carry_out(&self, op: &Op, mapped: &Mapped) -> Option<Result<(), FabricError>> {
        let before = usage::this_thread();
        let result = self.copy(op, mapped);
        let after = usage::this_thread();
        {
            let mut cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
            cpu.user += after.user - before.user;
            cpu.system += after.system - before.system;
        }
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
                this.ended(op.id.0, result.map_err(OpError::Op));
            }
        }))
    }
}
