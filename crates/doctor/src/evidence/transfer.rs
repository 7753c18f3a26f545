//! Transfer engines that sit above RDMA: NIXL and Mooncake.

mod reader;

use serde::Serialize;

pub(crate) use self::reader::{MooncakeReader, NixlReader};
use super::sighting::Sighting;

/// Output of a transfer engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferLog {
    /// Messages, one for each wording; numbers do not tell them apart.
    pub messages: Vec<Sighting<TransferMessage>>,
    /// Messages that said something new after the limit was reached.
    pub beyond_limit: u64,
}

/// One message at its first sighting.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TransferMessage {
    /// How grave the engine called it.
    pub level: Level,
    /// Source file and line, where printed.
    pub site: Option<String>,
    /// The words.
    pub text: String,
}

/// How grave a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Details.
    Debug,
    /// News.
    Info,
    /// A warning.
    Warning,
    /// An error.
    Error,
    /// The program ended.
    Fatal,
}
