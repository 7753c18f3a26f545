//! Processes that have a stand-in for NVIDIA's runtime, and do what they are told by lines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::gpu::{IpcHandle, Shared};
use crowfly_mover::fabric::{
    Access, Buffer, Delivery, Fabric, FabricError, Options, Peer, Region, RegionDescriptor,
    Settings, SharedKey,
};
use crowfly_mover::gpu::{DeviceMemory, Gpu};
use crowfly_route::policy::Policy;

/// Odd, and over several buffers, ops and pieces.
pub const LEN: usize = (3 << 20) + 4096 + 13;
/// Long enough for a busy machine, short enough to fail in.
const SOON: Duration = Duration::from_secs(20);
/// What a child of the tests is to be, and what it has to know.
const ROLE: &str = "CROWFLY_TEST_ROLE";
/// In front of what a child says, among what its test harness prints.
const SAID: &str = "said: ";

/// A process that does what it is told.
pub struct Child {
    process: std::process::Child,
    told: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Child {
    pub fn start(role: &str, runtime: Option<&Path>, known: &[&str]) -> Self {
        let program = std::env::current_exe().expect("a program");
        let mut command = Command::new(program);
        command
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, [&[role], known].concat().join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        match runtime {
            Some(folder) => command.env("LD_LIBRARY_PATH", folder),
            None => command.env_remove("LD_LIBRARY_PATH"),
        };
        let mut process = command.spawn().expect("started");
        let told = process.stdin.take().expect("a pipe");
        let says = BufReader::new(process.stdout.take().expect("a pipe"));
        Self {
            process,
            told,
            says,
        }
    }

    /// The next thing that it says, which begins with a word.
    pub fn hear(&mut self, word: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let read = self.says.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "it ended without `{word}`: {all}");
            if let Some((_, said)) = line.trim_end().split_once(SAID) {
                let rest = said.strip_prefix(word);
                let rest = rest.unwrap_or_else(|| panic!("`{said}` is no `{word}`"));
                return rest.trim_start().to_owned();
            }
            all.push_str(&line);
        }
    }

    pub fn ask(&mut self, what: &str) -> String {
        writeln!(self.told, "{what}").expect("it listens");
        self.hear("")
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does as told, in a process that a test started.
pub fn be_child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    match words.as_slice() {
        ["owner"] => own(),
        ["peer", region] => visit(region),
        ["opener", handle] => open(handle),
        other => panic!("{other:?}"),
    }
}

fn say(what: &str) {
    println!("{SAID}{what}");
}

fn told() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map_while(Result::ok)
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ seed)
        .collect()
}

const OWNERS: u8 = 1;
const PEERS: u8 = 2;

fn whose(bytes: &[u8]) -> &'static str {
    match bytes {
        bytes if bytes == pattern(OWNERS) => "the owner's bytes",
        bytes if bytes == pattern(PEERS) => "the peer's bytes",
        _ => "nobody's bytes",
    }
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    assert_eq!(region.read_at(0, &mut bytes), bytes.len());
    bytes
}

fn fabric(gpus: Vec<Arc<Gpu>>) -> Fabric {
    let settings = Settings {
        gpus,
        silence: Duration::from_secs(3),
        ..Settings::new(SharedKey::derive("two processes"))
    };
    Fabric::new(settings).expect("a fabric")
}

/// How much of the stand-in's memory is still allocated or open; none where it was never loaded.
fn left_behind() -> i32 {
    let loaded = libc::RTLD_NOLOAD | libc::RTLD_NOW;
    // SAFETY: the name is a C string; a library that is not loaded is not loaded by this.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), loaded) };
    if library.is_null() {
        return 0;
    }
    // SAFETY: an open library, and a C string.
    let alive = unsafe { libc::dlsym(library, c"fake_alive".as_ptr()) };
    assert!(!alive.is_null(), "it is the stand-in");
    // SAFETY: the stand-in's function of that name takes nothing and answers an int.
    unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> i32>(alive)() }
}

fn own() {
    let gpu = Arc::new(Gpu::nth(1).expect("the stand-in's"));
    let fabric = fabric(vec![Arc::clone(&gpu)]);
    let memory = DeviceMemory::allocate(gpu.device(), LEN).expect("room");
    let buffer = Buffer::of_gpu(gpu.index(), Arc::clone(&memory)).expect("an address");
    let mut region = Some(
        fabric
            .register(buffer, Access::READ_WRITE)
            .expect("registered"),
    );
    let held = region.as_ref().expect("just registered");
    assert_eq!(held.write_at(0, &pattern(OWNERS)), LEN);
    let descriptor = held.descriptor().to_bytes().expect("fits");
    say(&format!("region {}@{}", hex(&descriptor), fabric.address()));
    let mut memory = Some(memory);
    for line in told() {
        match line.as_str() {
            "look" => say(whose(&content(region.as_ref().expect("not taken back")))),
            "handle" => {
                let shared = memory.as_ref().expect("not taken back").share();
                let Shared::Handle { handle, offset: 0 } = shared.expect("shared") else {
                    panic!("of one allocation")
                };
                say(&hex(&handle.bytes));
            }
            "take back" => {
                let back = region.take().expect("once").deregister();
                let back = back.map(drop);
                drop(memory.take());
                say(&back.map_or_else(|error| error.to_string(), |()| "taken back".into()));
            }
            "leave" => {
                drop((region.take(), memory.take()));
                drop(fabric);
                return say(&format!("{} left behind", left_behind()));
            }
            other => panic!("{other}"),
        }
    }
}

fn visit(region: &str) {
    let (descriptor, address) = region.split_once('@').expect("both");
    let there = RegionDescriptor::from_bytes(&unhex(descriptor)).expect("reads back");
    let gpu = Gpu::nth(0).ok().map(Arc::new);
    let fabric = fabric(gpu.iter().cloned().collect());
    let buffer = match &gpu {
        Some(gpu) => Buffer::on_gpu(gpu, LEN).expect("room"),
        None => Buffer::zeroed(LEN, None).expect("memory"),
    };
    let here = fabric.register(buffer, Access::LOCAL).expect("registered");
    let peer = fabric
        .connect(address, Options::within(SOON))
        .expect("connected");
    say(&format!("open {}", here.place()));
    let mut open = Some((here, peer, fabric));
    let policy = match &gpu {
        Some(_) => Policy::Require,
        None => Policy::Prefer,
    };
    let read = |here: &Region, peer: &Peer, policy| {
        let options = Options::within(SOON).by(policy);
        peer.read(&here.whole(), &there.whole(), options).wait()
    };
    for line in told() {
        let ends = open.as_ref().map(|(here, peer, _)| (here, peer));
        let ends = || ends.expect("it is not closed");
        match line.as_str() {
            "read" => {
                let (here, peer) = ends();
                let of = || format!(": {}", whose(&content(here)));
                say(&outcome(read(here, peer, policy), of));
            }
            "require" => {
                let (here, peer) = ends();
                say(&outcome(read(here, peer, Policy::Require), String::new));
            }
            "write" => {
                let (here, peer) = ends();
                say(&write(peer, here, &there));
            }
            "close" => {
                drop(open.take());
                say("closed");
            }
            "leave" => {
                drop(open);
                return say(&format!("{} left behind", left_behind()));
            }
            other => panic!("{other}"),
        }
    }
}

fn write(peer: &Peer, here: &Region, there: &RegionDescriptor) -> String {
    assert_eq!(here.write_at(0, &pattern(PEERS)), LEN);
    let options = Options::within(SOON).by(Policy::Require);
    let written = peer.write(&here.whole(), &there.whole(), options).wait();
    outcome(written, String::new)
}

/// What a receipt says in one line, or an error's code; and the obstacles that GPUs are.
fn outcome(done: Result<Delivery, FabricError>, and: impl FnOnce() -> String) -> String {
    let codes = |obstacles: &[crowfly_route::obstacle::Obstacle]| {
        let codes = obstacles.iter().map(|o| o.code.as_str());
        let mut codes: Vec<&str> = codes.filter(|code| code.starts_with("gpu-")).collect();
        codes.sort_unstable();
        codes.dedup();
        match codes.is_empty() {
            true => String::new(),
            false => format!(" ({})", codes.join(" ")),
        }
    };
    match done {
        Ok(delivery) => {
            let receipt = &delivery.receipt;
            let share = &receipt.shares[0];
            format!(
                "{} {} {} bounced {} of {}{}{}",
                share.path,
                share.class,
                receipt.route.name,
                receipt.bounced.0,
                receipt.requested.0,
                and(),
                codes(&receipt.obstacles)
            )
        }
        Err(error) => format!("{}{}", error.code(), codes(error.obstacles())),
    }
}

fn open(handle: &str) {
    let gpu = Gpu::nth(1).expect("the stand-in's");
    let bytes: [u8; 64] = unhex(handle).try_into().expect("a handle");
    for line in told() {
        assert_eq!(line, "open");
        let shared = Shared::Handle {
            handle: IpcHandle { bytes },
            offset: 0,
        };
        say(&match DeviceMemory::open(gpu.device(), &shared, LEN) {
            Ok(memory) => {
                let region = crowfly_mover::Region::of_gpu(1, memory).expect("an address");
                let mut bytes = vec![0; LEN];
                region.read_at(0, &mut bytes).expect("copied out");
                whose(&bytes).to_owned()
            }
            Err(error) => {
                let (call, answer) = (error.call().unwrap_or("?"), error.answer().unwrap_or(0));
                let text = error.to_string();
                let known = text.contains("invalid resource handle");
                let meaning = if known {
                    "invalid resource handle"
                } else {
                    &text
                };
                format!("{} by {call}: {answer} ({meaning})", error.code())
            }
        });
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len() / 2).map(|at| digits(2 * at)).collect()
}
