//! Two processes with one RDMA port each, as the rig's tests and benchmarks use them.
//!
//! ```text
//! verbs_peer serve --device NAME --listen ADDRESS:PORT
//! verbs_peer MODE  --device NAME --connect ADDRESS:PORT [--size N] [--count N] [--timeout T] [--retries R] [--deadline SECONDS]
//! ```
//!
//! The server registers memory, connects a queue pair and does what the other asks over a TCP
//! connection. The modes end with status 0 when what they saw is what they are about:
//!
//! | mode | what must happen |
//! |---|---|
//! | `verify` | chains of writes and reads of `--size` bytes arrive with the right content |
//! | `messages` | sends, receives, inline writes and immediate values arrive as what they are |
//! | `bad-key`, `outside`, `gone` | the peer's NIC refuses, the rest is flushed |
//! | `no-receive` | the peer's NIC reports that no receive is posted |
//! | `stall` | writes go on until nothing completes any more; at the deadline the queue pair is stopped, everything is flushed and the memory let go of; with retries that end, the NIC says so before |
//! | `dma-buf` | a real dma-buf is refused with obstacles (needs no server) |
//! | `bw`, `lat` | rates and latencies, one line of JSON |

mod link;
mod modes;

use std::process::ExitCode;
use std::time::Duration;

use crowfly_machine::verbs::Patience;

/// Why a run failed, in words.
type Failure = Box<dyn std::error::Error>;

/// What the command line says.
struct Options {
    mode: String,
    device: String,
    address: String,
    size: usize,
    count: usize,
    deadline: Duration,
    patience: Patience,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut options = Self {
            mode: words.next().ok_or("which mode?")?,
            device: String::new(),
            address: String::new(),
            size: 1 << 20,
            count: 16,
            deadline: Duration::from_secs(3),
            patience: Patience {
                // 67 ms: a lost packet costs little on a cable this short.
                timeout: 14,
                ..Patience::default()
            },
        };
        while let Some(word) = words.next() {
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--device" => options.device = value,
                "--listen" | "--connect" => options.address = value,
                "--size" => options.size = value.parse()?,
                "--count" => options.count = value.parse()?,
                "--deadline" => options.deadline = Duration::from_secs_f64(value.parse()?),
                "--timeout" => options.patience.timeout = value.parse()?,
                "--retries" => options.patience.retries = value.parse()?,
                "--receiver-retries" => options.patience.receiver_retries = value.parse()?,
                _ => return Err(format!("unknown option {word}").into()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let run = Options::parse(std::env::args().skip(1)).and_then(|options| modes::run(&options));
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("verbs_peer: {failure}");
            ExitCode::FAILURE
        }
    }
}
