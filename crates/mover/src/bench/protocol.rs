//! What the two ends of a measurement tell each other, as JSON in messages of the fabric.

use crowfly_route::receipt::CpuSeconds;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::BenchError;
use crate::fabric::{Options, Peer};

/// The version of these messages; both ends must speak the same.
pub(super) const VERSION: u32 = 1;

/// What the measuring end asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ask {
    /// Lend me this much memory; here is mine.
    Open {
        version: u32,
        bytes: u64,
        /// Memory that can be mapped, or an allocator's.
        mappable: bool,
        descriptor: Vec<u8>,
    },
    /// Answer this many pings, each with as many bytes.
    Echo { bytes: u64, times: u32 },
    /// How much CPU time have you used so far?
    Usage,
}

/// What the other end answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The memory; pings carry this value, in both directions.
    Opened { descriptor: Vec<u8>, imm: u32 },
    /// It waits for pings.
    Listening,
    /// It has used this much.
    Used(CpuSeconds),
    /// It cannot.
    Refused { why: String },
}

pub(super) fn say<T: Serialize>(peer: &Peer, what: &T, options: Options) -> Result<(), BenchError> {
    let text = serde_json::to_vec(what).map_err(|error| BenchError::Protocol {
        what: error.to_string(),
    })?;
    Ok(peer.send(&text, options).wait()?)
}

pub(super) fn hear<T: DeserializeOwned>(peer: &Peer, options: Options) -> Result<T, BenchError> {
    let text = peer.recv(options).wait()?;
    serde_json::from_slice(&text).map_err(|error| BenchError::Protocol {
        what: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_the_largest_descriptors_a_message_still_fits() {
        let ask = Ask::Open {
            version: VERSION,
            bytes: u64::MAX,
            mappable: true,
            descriptor: vec![255; crate::fabric::MAX_DESCRIPTOR],
        };
        let text = serde_json::to_vec(&ask).expect("JSON");
        assert!(text.len() <= crate::fabric::MAX_MESSAGE, "{}", text.len());
    }

    #[test]
    fn given_something_else_than_an_answer_it_is_refused() {
        for text in ["", "{}", "\"open\"", "{\"open\":{\"version\":1}}", "[1]"] {
            assert!(serde_json::from_str::<Ask>(text).is_err(), "{text}");
        }
    }
}
