//! Regions lent to the peer, and the peer's regions mapped here.

use super::*;

impl ShmLink {
    /// Gives the peer a region's memory file.
    pub(super) fn lend(&self, op: u64, capability: Capability) {
        let refuse = |status: Status| Frame {
            status: status as u8,
            ..Frame::new(Kind::Mapped, op, Vec::new())
        };
        let found = self
            .regions
            .find(&capability, Wish::Write)
            .map(|region| (region, true))
            .or_else(|_| Ok((self.regions.find(&capability, Wish::Read)?, false)));
        let frame = match found {
            Err(status) => refuse(status),
            Ok((region, writable)) => {
                let file = region.backing().file().and_then(|file| {
                    if writable {
                        rustix::io::fcntl_dupfd_cloexec(file, 0).ok()
                    } else {
                        // A descriptor that cannot be mapped for writing.
                        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
                        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()
                    }
                });
                let room = self.state().lent.len() < MAX_MAPS;
                match file.filter(|_| room) {
                    None => refuse(Status::NotMappable),
                    Some(file) => {
                        self.state().lent.insert(capability, Lent::Mapped);
                        if region.gate.is_closed() {
                            self.state().lent.remove(&capability);
                            refuse(Status::NoSuchRegion)
                        } else {
                            let mut body = Writer::default();
                            body.u64(region.backing().len() as u64)
                                .u8(u8::from(writable));
                            Frame {
                                descriptor: Some(file),
                                ..Frame::new(Kind::Mapped, op, body.finish())
                            }
                        }
                    }
                }
            }
        };
        self.conn.send(frame);
    }

    /// A peer's region arrived, or was refused.
    pub(super) fn arrived(
        &self,
        header: &Header,
        body: &[u8],
        file: Option<OwnedFd>,
    ) -> Result<(), Violation> {
        let mut fields = Reader::new(body);
        let described = fields.u64().zip(fields.u8());
        let mapped = match (Status::of(header.status), described, file) {
            (Some(Status::Done), Some((len, writable)), Some(file)) => {
                let memory = usize::try_from(len)
                    .ok()
                    .and_then(|len| Backing::map(file, len, writable != 0).ok());
                let memory = memory.ok_or(Violation("memory that could be cut"))?;
                Ok(Arc::new(Mapped {
                    memory: Arc::new(memory),
                    gate: Gate::default(),
                }))
            }
            (Some(Status::Done), ..) => return Err(Violation("a region without its memory")),
            (Some(status), ..) => Err(status),
            (None, ..) => return Err(Violation("an unknown answer")),
        };
        let waiting = {
            let mut state = self.state();
            let Some(capability) = state.questions.remove(&header.op) else {
                return Err(Violation("memory that nobody asked for"));
            };
            let before = match &mapped {
                Ok(mapped) => state
                    .maps
                    .insert(capability, Mapping::Here(Arc::clone(mapped))),
                Err(_) => state.maps.remove(&capability),
            };
            match before {
                Some(Mapping::Asked(ops)) => ops,
                _ => Vec::new(),
            }
        };
        self.mapped.notify_all();
        for op in waiting {
            match &mapped {
                Ok(mapped) => self.dispatch(op, Arc::clone(mapped)),
                Err(status) => {
                    let error = status.error(self.peer, 0, "to be mapped");
                    self.ended(op.id.0, error.map_err(OpError::Op));
                }
            }
        }
        Ok(())
    }

    /// Whether the peer's mappings ended with it: its process is gone, or is this one, whose links
    /// let go when they close.
    pub(super) fn peer_is_gone(&self) -> bool {
        let Some(process) = self.process else {
            return false;
        };
        let gone = rustix::process::test_kill_process(process) == Err(rustix::io::Errno::SRCH);
        gone || process == rustix::process::getpid()
    }

    /// The peer withdraws a region: nothing here touches it any more when this returns.
    pub(super) fn let_go(&self, capability: &Capability) {
        let before = self.state().maps.remove(capability);
        match before {
            Some(Mapping::Here(mapped)) => mapped.gate.close(),
            Some(Mapping::Asked(ops)) => {
                for op in ops {
                    let gone = FabricError::NoSuchRegion { peer: self.peer };
                    self.ended(op.id.0, Err(OpError::Op(gone)));
                }
            }
            None => {}
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
            Kind::Map => self.lend(header.op, capability_of(body)?),
            Kind::Mapped => self.arrived(header, body, descriptor)?,
            Kind::Unmap => {
                self.let_go(&capability_of(body)?);
                conn.send(Frame::new(Kind::Answer, header.op, body.to_vec()));
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

    fn landed(&self, _: &Arc<Conn>, _: &Header, _: &Incoming, _: bool) {}

    fn broken(&self, why: String) {
        self.close();
        if let Some(events) = self.events.upgrade() {
            events.down(self.rail, why);
        }
    }
}
