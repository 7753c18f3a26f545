//! Hosts of their own for processes of tests: a network namespace with interfaces at the ends of
//! [cables](super::cable), and a process in it that does what it is told, line by line.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::cable::Cable;

/// The variable that makes a test's program a host's process.
pub const ROLE: &str = "CROWFLY_TEST_HOST";
/// What marks the answers among what the test harness prints.
const ANSWER: &str = "answer: ";

/// A process in a network namespace of its own.
pub struct Host {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Host {
    /// Starts the test `role` of this program on a host at one side of the cables in the folders;
    /// `None` where this machine does not let processes have networks of their own.
    ///
    /// Its address on the cable with the number N is 10.9.N.1 for `west` and 10.9.N.2 for `east`.
    pub fn start(role: &str, side: &str, cables: &[PathBuf]) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let folders: Vec<_> = cables.iter().map(|c| c.display().to_string()).collect();
        let mut command = match cables {
            [] => Command::new(&program),
            _ => {
                let mut command = Command::new("unshare");
                command.args(["--map-root-user", "--net"]).arg(&program);
                command
            }
        };
        let mut child = command
            .args(["--exact", role, "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{side} {}", folders.join(" ")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let (orders, out) = (child.stdin.take(), child.stdout.take());
        let (orders, out) = orders.zip(out).ok_or("no pipes")?;
        let (said, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The harness prints the test's name first, on the same line.
                if let Some((_, answer)) = line.split_once(ANSWER) {
                    let _ = said.send(answer.to_owned());
                }
            }
        });
        let mut host = Self {
            child,
            orders,
            answers,
        };
        match host.hear(Duration::from_secs(20)) {
            Some(ready) if ready == "ready" => Ok(host),
            Some(why) => Err(why),
            None => {
                let mut text = String::new();
                let _ = host.child.kill();
                if let Some(mut err) = host.child.stderr.take() {
                    let _ = err.read_to_string(&mut text);
                }
                Err(format!("the host did not come up: {text}"))
            }
        }
    }

    /// Tells it what to do.
    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    /// Its next answer, if it comes in time.
    pub fn hear(&self, time: Duration) -> Option<String> {
        self.answers.recv_timeout(time).ok()
    }

    /// Its next answer, which must come in time.
    pub fn answer(&self, time: Duration) -> String {
        self.hear(time).expect("an answer in time: it hangs")
    }

    /// Tells it what to do and waits for its answer.
    pub fn ask(&mut self, order: &str, time: Duration) -> String {
        self.order(order);
        self.answer(time)
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{name}");
    }

    /// Stops it, and waits until each of its threads stands still.
    pub fn stop(&self) {
        self.signal("STOP");
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            let stat = stat.unwrap_or_default();
            stat.rsplit_once(')')
                .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        let tasks = format!("/proc/{}/task", self.child.id());
        while !std::fs::read_dir(&tasks).is_ok_and(|mut tasks| tasks.all(stands)) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the process on a host is told: its side and its cables. `None` in the test run itself.
pub fn on_a_host() -> Option<(String, Vec<PathBuf>)> {
    let told = std::env::var(ROLE).ok()?;
    let mut words = told.split_whitespace();
    let side = words.next()?.to_owned();
    Some((side, words.map(PathBuf::from).collect()))
}

/// Says something to the test.
pub fn say(answer: &str) {
    println!("{ANSWER}{answer}");
}

/// Plugs the cables in; says why where that cannot be done.
pub fn plug_in(side: &str, cables: &[PathBuf]) -> Result<(), String> {
    for (number, folder) in cables.iter().enumerate() {
        let name = format!("cable{number}");
        let tun = tun(&name).map_err(|error| format!("waived: /dev/net/tun: {error}"))?;
        let last = if side == "west" { 1 } else { 2 };
        ip(&[
            "address",
            "add",
            &format!("10.9.{number}.{last}/24"),
            "dev",
            &name,
        ])?;
        ip(&["link", "set", &name, "mtu", "8000", "up"])?;
        relay(tun, folder, side).map_err(|error| error.to_string())?;
    }
    if !cables.is_empty() {
        ip(&["link", "set", "lo", "up"])?;
    }
    Ok(())
}

pub fn ip(words: &[&str]) -> Result<(), String> {
    let run = Command::new("ip").args(words).output();
    match run {
        Ok(run) if run.status.success() => Ok(()),
        Ok(run) => Err(format!(
            "ip {words:?}: {}",
            String::from_utf8_lossy(&run.stderr)
        )),
        Err(error) => Err(format!("waived: ip: {error}")),
    }
}

/// Opens a network interface whose packets this process reads and writes.
fn tun(name: &str) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: an all-zero `ifreq` is a valid value of plain integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is initialised and outlives the call, which writes only into it.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if rc < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(file)
}

/// Passes packets between an interface and a cable.
fn relay(tun: File, folder: &Path, side: &str) -> std::io::Result<()> {
    let (inward, outward) = Cable::ends(folder, side);
    let _ = std::fs::remove_file(&inward);
    let socket = UnixDatagram::bind(inward)?;
    let (out, mut to_kernel) = (socket.try_clone()?, tun.try_clone()?);
    let mut from_kernel = tun;
    thread::spawn(move || {
        let mut packet = vec![0; 65_536];
        while let Ok(len) = from_kernel.read(&mut packet) {
            let _ = out.send_to(&packet[..len], &outward);
        }
    });
    thread::spawn(move || {
        let mut packet = vec![0; 65_536];
        while let Ok(len) = socket.recv(&mut packet) {
            let _ = to_kernel.write(&packet[..len]);
        }
    });
    Ok(())
}
