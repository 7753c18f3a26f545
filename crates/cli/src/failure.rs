//! Errors become a sentence, a stable code, a hint and an exit status, here and nowhere else.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crowfly_route::obstacle::Obstacle;
use serde::Serialize;

use crate::path::shown;

pub mod errno;
mod rendezvous;
mod service;
mod sources;

/// The version of the JSON form of an error.
pub const ERROR_SCHEMA: &str = "crowfly.error/1";

macro_rules! exits {
    ($($(#[doc = $doc:literal])+ $name:ident = $status:literal,)+) => {
        /// The exit statuses, the only ones this program returns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Exit {
            $($(#[doc = $doc])+ $name = $status,)+
        }

        impl Exit {
            /// Every status, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What the status means, as documented.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

// 0 to 3 answer the question that was asked; from 64 on no answer could be given, with the numbers
// of sysexits(3); 130 as shells count a death by SIGINT.
exits! {
    /// done; of a diagnosis: every path asked about is direct
    Ok = 0,
    /// a diagnosis found a detour, a kernel socket or a slow path
    Detour = 1,
    /// a diagnosis found something broken, or verification found different bytes
    Broken = 2,
    /// there was not enough evidence to say
    Unsure = 3,
    /// the command line makes no sense
    Usage = 64,
    /// the input is malformed or contradicts itself
    BadData = 65,
    /// the input does not exist or may not be read
    NoInput = 66,
    /// this machine cannot do what was asked; the obstacles say why
    Unavailable = 69,
    /// the output could not be created, or has no space
    CannotCreate = 73,
    /// reading or writing failed on the way
    Io = 74,
    /// interrupted by Ctrl-C, SIGTERM or SIGHUP
    Interrupted = 130,
}

impl Exit {
    /// The number that the process returns.
    pub const fn status(self) -> u8 {
        self as u8
    }

    /// The answers of the system that end with this status, as their names in `errno(3)`.
    pub fn errors(self) -> Vec<&'static str> {
        errno::names(self)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.status())
    }
}

/// Why a command could not do what was asked.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(rename = "exit", serialize_with = "as_status")]
    exit: Exit,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obstacles: Vec<Obstacle>,
    /// The same for people, where someone else laid it out.
    #[serde(skip)]
    laid_out: Option<String>,
}

fn as_status<S: serde::Serializer>(exit: &Exit, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(exit.status())
}

impl Failure {
    /// A failure with its stable kebab-case code and a sentence naming object, operation and values.
    pub fn new(code: &'static str, exit: Exit, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            exit,
            obstacles: Vec::new(),
            laid_out: None,
        }
    }

    /// The command line makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new("usage", Exit::Usage, message)
    }

    /// A file given by the user could not be read.
    pub fn reading(path: &Path, error: &io::Error) -> Self {
        let (code, exit) = match (error.kind(), errno::reading(error)) {
            (io::ErrorKind::NotFound, exit) => ("input-not-found", exit),
            (io::ErrorKind::PermissionDenied, exit) => ("input-denied", exit),
            (io::ErrorKind::IsADirectory, exit) => ("input-is-directory", exit),
            (io::ErrorKind::WouldBlock, exit) => ("input-would-block", exit),
            (_, exit) => ("input-unreadable", exit),
        };
        let what = format!("could not read {}: {error}", shown(path));
        let unsaid = "it has nothing to say yet, and is not waited for";
        let waits = (error.kind() == io::ErrorKind::WouldBlock).then_some(unsaid);
        Self::new(code, exit, what).maybe_hint(errno::hint(error).or(waits))
    }

    /// A file asked for by the user could not be created.
    pub fn creating(path: &Path, error: &io::Error) -> Self {
        let what = format!("could not write {}: {error}", shown(path));
        let failure = Self::new("output-not-created", errno::creating(error), what);
        failure.maybe_hint(errno::hint(error))
    }

    /// Standard output could not be written.
    pub fn output(error: &io::Error) -> Self {
        let what = format!("could not write to standard output: {error}");
        Self::new("output-failed", errno::moving(error), what).maybe_hint(errno::hint(error))
    }

    /// A signal ended the work.
    pub fn interrupted(signal: &str) -> Self {
        let what = format!("interrupted by {signal}");
        Self::new("interrupted", Exit::Interrupted, what)
    }

    /// Adds what the user can do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what the user can do about it, where something is known.
    pub fn maybe_hint(self, hint: Option<&str>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Says first what it is about.
    pub fn about(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Replaces the rendering for people by text that is already laid out.
    pub fn laid_out(mut self, text: impl Into<String>) -> Self {
        self.laid_out = Some(text.into());
        self
    }

    /// Adds what stands in the way.
    pub fn with_obstacles(mut self, obstacles: Vec<Obstacle>) -> Self {
        self.obstacles = obstacles;
        self
    }

    /// The stable code.
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What the user can do about it.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The text for people, where someone else laid it out.
    pub fn laid_out_text(&self) -> Option<&str> {
        self.laid_out.as_deref()
    }

    /// What stands in the way.
    pub fn obstacles(&self) -> &[Obstacle] {
        &self.obstacles
    }

    /// The exit status.
    pub const fn exit(&self) -> Exit {
        self.exit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_distinct_and_documented() {
        let mut seen = std::collections::BTreeSet::new();
        for exit in Exit::ALL {
            assert!(seen.insert(exit.status()), "{exit:?} twice");
            assert!(!exit.meaning().is_empty(), "{exit:?}");
        }
    }

    #[test]
    fn a_missing_and_a_forbidden_input_are_told_apart() {
        let path = Path::new("m.json");
        let code = |kind| Failure::reading(path, &io::Error::from(kind)).code();
        assert_eq!(code(io::ErrorKind::NotFound), "input-not-found");
        assert_eq!(code(io::ErrorKind::PermissionDenied), "input-denied");
        assert_eq!(code(io::ErrorKind::Other), "input-unreadable");
    }

    #[test]
    fn the_json_form_has_code_message_exit_and_what_is_known_besides() {
        let failure = Failure::new("snapshot-schema", Exit::BadData, "no").hint("try");
        let json = serde_json::to_value(&failure).expect("serialises");
        let expected = serde_json::json!({
            "code": "snapshot-schema", "message": "no", "hint": "try", "exit": 65,
        });
        assert_eq!(json, expected);
    }
}
