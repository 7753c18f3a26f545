//! The answers that come over a connection, each handed to whoever waits for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Answer, Channel, Peer, ServiceError};
use crate::service::limits::LOOK;

#[derive(Default)]
pub(super) struct Waiting {
    pub(super) answers: HashMap<u64, Sender<Answer>>,
    /// Why nothing more will come.
    pub(super) end: Option<(&'static str, String)>,
}

pub(super) struct Line {
    pub(super) channel: Box<dyn Channel>,
    pub(super) peer: Peer,
    pub(super) server: String,
    pub(super) waiting: Mutex<Waiting>,
    pub(super) stop: AtomicBool,
}

impl Line {
    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands answers to whoever waits for them, until nothing more can come.
    pub(super) fn listen(&self) {
        let (code, why) = loop {
            if self.stop.load(Ordering::Acquire) {
                break ("cancelled", "the connection was ended here".to_owned());
            }
            match self.channel.receive(LOOK) {
                Ok(None) => match self.peer.lost() {
                    Some(why) => break ("peer-lost", why),
                    None => continue,
                },
                Ok(Some(message)) => match Answer::decode(&message) {
                    Ok((0, Answer::Failed { code, message })) => {
                        break (ServiceError::known(&code), message);
                    }
                    Ok((number, answer)) => {
                        let waits = self.waiting().answers.remove(&number);
                        if let Some(waits) = waits {
                            let _ = waits.send(answer);
                        }
                    }
                    Err(error) => break ("protocol-violation", error.to_string()),
                },
                Err(error) => break (error.code(), error.to_string()),
            }
        };
        let mut waiting = self.waiting();
        waiting.end = Some((code, why));
        waiting.answers.clear();
    }

    pub(super) fn ended(&self) -> ServiceError {
        let end = self.waiting().end.clone();
        let (code, message) = end.unwrap_or(("peer-lost", "it answers no more".to_owned()));
        let server = self.server.clone();
        match code {
            "peer-lost" => ServiceError::Lost {
                server,
                why: message,
            },
            code => ServiceError::Remote {
                server,
                code,
                message,
            },
        }
    }
}
