//! Regions lent to the peer, and the peer's regions mapped here.

use super::*;

impl ShmLink {
    /// Gives the peer a region's memory file, or what opens a GPU's memory.
    pub(super) fn lend(&self, op: u64, capability: Capability, piece: u16) {
        let frame = self.lent(op, capability, piece);
        self.conn.send(frame.unwrap_or_else(|status| Frame {
            status: status as u8,
            ..Frame::new(Kind::Mapped, op, Vec::new())
        }));
    }

    fn lent(&self, op: u64, capability: Capability, piece: u16) -> Result<Frame, Status> {
        let found = self.regions.find(&capability, Wish::Write);
        let found = found.map(|region| (region, true));
        let (region, writable) =
            found.or_else(|_| Ok((self.regions.find(&capability, Wish::Read)?, false)))?;
        let len = region.backing().len() as u64;
        let told = region
            .registration(Path::Shm, NAME)
            .and_then(|known| known.keep.downcast_ref::<devices::Told>());
        let frame = match told {
            Some(told) => devices::answer(op, told, len, writable, piece),
            None => region.backing().file().and_then(|file| {
                let file = if writable {
                    rustix::io::fcntl_dupfd_cloexec(file, 0).ok()
                } else {
                    // A descriptor that cannot be mapped for writing.
                    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
                    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()
                };
                file.map(|file| devices::file(op, len, writable, file))
            }),
        };
        let frame = frame.ok_or(Status::NotMappable)?;
        let mut state = self.state();
        if state.lent.len() >= MAX_MAPS || state.tether.is_none() {
            return Err(Status::NotMappable);
        }
        state.lent.insert(capability, Lent::Mapped);
        if region.gate.is_closed() {
            state.lent.remove(&capability);
            return Err(Status::NoSuchRegion);
        }
        Ok(frame)
    }

    /// A peer's region arrived, or was refused.
    pub(super) fn arrived(
        &self,
        header: &Header,
        body: &[u8],
        mut file: Option<OwnedFd>,
    ) -> Result<(), Violation> {
        let mapped = {
            let mut state = self.state();
            let Some(capability) = state.questions.remove(&header.op) else {
                return Err(Violation("memory that nobody asked for"));
            };
            let told = match Status::of(header.status) {
                Some(Status::Done) => Ok(devices::arrived(
                    &mut state.arriving,
                    capability,
                    body,
                    &mut file,
                )?),
                Some(status) => Err(status),
                None => return Err(Violation("an unknown answer")),
            };
            let Some(hold) = state.hold.clone() else {
                // The link was closed meanwhile.
                return Ok(());
            };
            match told {
                Ok(devices::Arrived::More(piece)) => {
                    state.next_question += 1;
                    let next = state.next_question;
                    state.questions.insert(next, capability);
                    drop(state);
                    self.conn.send(devices::question(next, capability, piece));
                    return Ok(());
                }
                Ok(devices::Arrived::Gpu {
                    told,
                    len,
                    writable,
                }) => {
                    state.opening.insert(capability, None);
                    drop(state);
                    self.open_device(capability, told, len, writable, hold);
                    return Ok(());
                }
                Ok(devices::Arrived::File) => Ok(Self::file(body, file, hold)?),
                Err(status) => Err(status),
            }
            .map(|opened| {
                let mapping = match &opened {
                    Ok(mapped) => Mapping::Here(Arc::clone(mapped)),
                    Err(error) => Mapping::Failed(error.clone()),
                };
                (opened, state.maps.insert(capability, mapping))
            })
            .map_err(|status| (status, state.maps.remove(&capability)))
        };
        self.mapped.notify_all();
        let ops = |asked| match asked {
            Some(Mapping::Asked(ops)) => ops,
            _ => Vec::new(),
        };
        match mapped {
            Ok((Ok(mapped), asked)) => ops(asked)
                .into_iter()
                .for_each(|op| self.dispatch(op, Arc::clone(&mapped))),
            Ok((Err(error), asked)) => {
                for op in ops(asked) {
                    let elsewhere = OpError::Elsewhere(vec![unmapped(&error)]);
                    self.ended(op.id.0, Err(elsewhere));
                }
            }
            Err((status, asked)) => {
                for op in ops(asked) {
                    let error = status.error(self.peer, 0, "to be mapped");
                    self.ended(op.id.0, error.map_err(OpError::Op));
                }
            }
        }
        Ok(())
    }

    /// A memory file, mapped, or the system's answer where it has no room for it.
    fn file(
        body: &[u8],
        file: Option<OwnedFd>,
        hold: tether::Hold,
    ) -> Result<Result<Arc<Mapped>, SharedIo>, Violation> {
        let mut fields = Reader::new(body);
        let described = fields.u64().zip(fields.u8());
        let told = described.zip(file);
        let ((len, writable), file) = told.ok_or(Violation("a region without its memory"))?;
        let cut = Violation("memory that could be cut");
        let len = usize::try_from(len).map_err(|_| Violation("memory of no length"))?;
        match Backing::map(file, len, writable != 0) {
            Ok(memory) => Ok(Ok(Mapped::new(memory, hold))),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Err(cut),
            Err(error) => Ok(Err(Arc::new(error))),
        }
    }

    /// Whether the link has ended and nothing that was lent by it is mapped any more.
    pub(super) fn is_given_back(&self, state: &State) -> bool {
        self.conn.is_broken() && state.tether.as_ref().is_none_or(tether::is_cut)
    }

    /// The peer withdraws a region: nothing here touches it any more when this returns, and `answer`
    /// is sent when nothing has it open.
    pub(super) fn let_go(&self, capability: &Capability, answer: Frame) {
        let before = {
            let mut state = self.state();
            let before = state.maps.remove(capability);
            state.arriving.remove(capability);
            if let Some(farewell) = state.opening.get_mut(capability) {
                *farewell = Some(answer);
                drop(state);
                self.end_asked(before);
                return;
            }
            before
        };
        match before {
            Some(Mapping::Here(mapped)) => {
                mapped.gate.close();
                let farewell = mapped.farewell.lock();
                *farewell.unwrap_or_else(PoisonError::into_inner) =
                    Some((Arc::clone(&self.conn), answer));
            }
            other => {
                self.end_asked(other);
                self.conn.send(answer);
            }
        }
    }

    /// Ends what waited for memory that was withdrawn.
    fn end_asked(&self, before: Option<Mapping>) {
        let Some(Mapping::Asked(ops)) = before else {
            return;
        };
        for op in ops {
            let gone = FabricError::NoSuchRegion { peer: self.peer };
            self.ended(op.id.0, Err(OpError::Op(gone)));
        }
    }
}

fn capability_of(body: &[u8]) -> Result<Capability, Violation> {
    let mut fields = Reader::new(body);
    let capability = fields.array().filter(|_| fields.is_done());
    capability
        .map(Capability::from_bytes)
        .ok_or(Violation("a malformed capability"))
}

impl Handler for ShmLink {
    fn frame(
        &self,
        conn: &Arc<Conn>,
        header: &Header,
        body: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<Incoming, Violation> {
        match header.kind {
            Kind::Map => {
                let (capability, piece) = devices::asked(body)?;
                self.lend(header.op, capability, piece);
            }
            Kind::Mapped => self.arrived(header, body, descriptor)?,
            Kind::Tether => {
                let end = descriptor.ok_or(Violation("a tether without its end"))?;
                if self.state().tether.replace(end).is_some() {
                    return Err(Violation("a second tether"));
                }
            }
            Kind::Unmap => {
                let answer = Frame::new(Kind::Answer, header.op, body.to_vec());
                self.let_go(&capability_of(body)?, answer);
            }
            Kind::Write => {
                let told = wire::Access::decode(body).ok_or(Violation("a malformed access"))?;
                if !told.runs.is_empty() {
                    return Err(Violation("bytes where memory is shared"));
                }
                let counted = counted(&self.events, told.imm);
                let status = if counted {
                    Status::Done
                } else {
                    Status::QueueFull
                };
                conn.send(Frame::answer(header.op, status));
            }
            Kind::Answer if body.is_empty() => {
                let status = Status::of(header.status).unwrap_or(Status::NotAllowed);
                let result = status.error(self.peer, 0, "remote writes");
                self.ended(header.op, result.map_err(OpError::Op));
            }
            Kind::Answer => {
                self.state().lent.remove(&capability_of(body)?);
                self.withdrawn.notify_all();
            }
            _ => return Err(Violation("a frame that does not belong on a rail")),
        }
        Ok(Incoming::NOTHING)
    }

    fn landed(&self, _: &Arc<Conn>, _: &Header, _: &Incoming, _: Landed) {}

    fn broken(&self, why: String) {
        self.close();
        if let Some(events) = self.events.upgrade() {
            events.down(self.rail, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    /// What a peer says of its memory of so many bytes, which can be cut or not.
    fn told(len: u64, fixed: bool) -> Result<Result<Arc<Mapped>, SharedIo>, Violation> {
        let file = memfd_create("told", MemfdFlags::ALLOW_SEALING).expect("a file");
        ftruncate(&file, len).expect("as long as that");
        if fixed {
            fcntl_add_seals(&file, SealFlags::SHRINK).expect("sealed");
        }
        let mut body = Writer::default();
        body.u64(len).u8(1);
        let (hold, _) = tether::tether().expect("a pipe");
        ShmLink::file(&body.finish(), Some(file), hold)
    }

    #[test]
    fn memory_that_could_be_cut_is_the_peers_fault_and_memory_there_is_no_room_for_is_nobodys() {
        assert!(told(4096, true).is_ok_and(|mapped| mapped.is_ok()));
        assert!(told(4096, false).is_err());
        // More than a process can address.
        let Ok(Err(error)) = told(1 << 58, true) else {
            panic!("there is no room for it");
        };
        let no_memory = rustix::io::Errno::NOMEM;
        assert_eq!(error.raw_os_error(), Some(no_memory.raw_os_error()));
        let mapping = Mapping::Failed(error);
        let why = mapping.obstacles().expect("ops go another way");
        assert_eq!(why[0].code, Code::NoSharedMemory);
    }
}
