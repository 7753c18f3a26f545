//! How fast large texts are read: `cargo bench -p crowfly-doctor`. Prints rates; judges nothing.

use std::fmt::Write as _;
use std::time::Instant;

use crowfly_doctor::evidence::Intake;

const MIB: usize = 1 << 20;
/// Bytes of each text.
const TOTAL: usize = 512 * MIB;
const PIECE: usize = 256 << 10;

/// Writes the line of this number.
type Write = fn(usize, &mut String);

/// A job of 1,024 ranks whose channels are set up again and again.
fn channels(number: usize, text: &mut String) {
    let (rank, channel) = (number % 1024, number / 1024 % 32);
    let gpu = rank % 8;
    let gdr = if rank % 3 == 0 { "" } else { "/GDRDMA" };
    let _ = writeln!(
        text,
        "node-{:04}:{}:{} [{gpu}] NCCL INFO Channel {channel:02}/0 : {rank}[{gpu}] -> {}[{gpu}] [send] via NET/IB/{gpu}{gdr}",
        rank / 8,
        1000 + rank,
        90_000 + rank,
        (rank + 8) % 1024,
    );
}

/// The rest of a training job's output.
fn training(number: usize, text: &mut String) {
    let _ = writeln!(
        text,
        "[default{}]: step {number} loss 2.{number:07} grad_norm 0.{number:04} tokens/s 123456 lr 1.0e-04 mem 61.2GB elapsed 12:03:{:02}",
        number % 8,
        number % 60
    );
}

/// Kernel messages.
fn kernel(number: usize, text: &mut String) {
    let _ = writeln!(
        text,
        "[{:6}.{:06}] mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged {number}",
        number / 1000,
        number % 1_000_000
    );
}

fn main() {
    let texts: [(&str, Write); 3] = [
        ("channels", channels),
        ("other text", training),
        ("kernel messages", kernel),
    ];
    for (what, line) in texts {
        let mut text = String::with_capacity(2 * PIECE);
        let (mut fed, mut number, mut seconds) = (0, 0, 0.0);
        let mut intake = Intake::new("big.log");
        while fed < TOTAL {
            text.clear();
            while text.len() < PIECE {
                line(number, &mut text);
                number += 1;
            }
            let start = Instant::now();
            intake.feed(text.as_bytes());
            seconds += start.elapsed().as_secs_f64();
            fed += text.len();
        }
        let sections = intake.finish().sections.len();
        println!(
            "{what}: {:.0} MB/s, {} MiB, {sections} artefacts",
            fed as f64 / seconds / 1e6,
            fed / MIB
        );
    }
}
