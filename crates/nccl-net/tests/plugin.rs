//! NCCL is played by a C program (`player/`) against the built library: two processes, every version
//! of the interface, over TCP and over the kernel's copy between processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crowfly_waive::waived;
use serde_json::Value;

/// How long a pair of players may take.
const PATIENCE: Duration = Duration::from_secs(100);
const VERSIONS: [u32; 4] = [8, 9, 10, 11];

/// The library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let path = test.with_file_name("libnccl_net_crowfly.so");
    assert!(path.exists(), "cargo did not build {}", path.display());
    path
}

/// The player; `None`, with the reason, where there is no C compiler.
fn player() -> Result<&'static Path, &'static str> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/player");
        // The rig takes it from there.
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl-player");
        let fresh = to.with_extension(std::process::id().to_string());
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&fresh)
            .args([source.join("player.c"), source.join("net.c")])
            .arg("-ldl");
        match cc.output() {
            Err(error) => Err(format!("no C compiler: cc: {error}")),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                assert!(done.status.success(), "the player does not compile: {said}");
                std::fs::rename(&fresh, &to).expect("in place");
                Ok(to)
            }
        }
    });
    match built {
        Ok(path) => Ok(path),
        Err(why) => Err(why),
    }
}

/// One of two players.
struct Player {
    child: Child,
    output: PathBuf,
    log: PathBuf,
}

/// What a player came to.
#[derive(Debug)]
struct Ended {
    ok: bool,
    output: String,
    log: String,
}

impl Player {
    fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn wait(mut self) -> Ended {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if Instant::now() > until => {
                    let _ = self.child.kill();
                    break self.child.wait().expect("a child");
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let output = self.output();
        Ended {
            ok: status.success() && output.ends_with("done\n"),
            output,
            log: std::fs::read_to_string(&self.log).unwrap_or_default(),
        }
    }
}

impl Ended {
    #[track_caller]
    fn is_fine(&self) {
        assert!(self.ok, "{}\n{}", self.output, self.log);
    }
}

/// A folder for two players, and what they have in common.
struct Stage {
    folder: tempfile::TempDir,
    version: u32,
    variables: Vec<(&'static str, String)>,
}

impl Stage {
    /// Both on this host, by TCP alone.
    fn tcp(version: u32) -> Self {
        let own = |value: &str| value.to_owned();
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            version,
            variables: vec![
                ("CROWFLY_NET_ADDRESS", own("127.0.0.1")),
                ("CROWFLY_NET_LOCAL", own("0")),
            ],
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value.into()));
        self
    }

    fn receipts(self) -> Self {
        let file = self.folder.path().join("receipts-%p").display().to_string();
        self.with("CROWFLY_NET_RECEIPTS", file)
    }

    fn play(&self, side: &str, scene: &str, more: &[&str]) -> Player {
        let player = player().expect("checked before");
        let at = |what: &str| self.folder.path().join(format!("{side}.{what}"));
        let (output, log) = (at("out"), at("log"));
        let file = |path: &Path| std::fs::File::create(path).expect("a file");
        let mut command = Command::new(player);
        command
            .arg(library())
            .args([&self.version.to_string(), side])
            .arg(self.folder.path())
            .arg(scene)
            .args(more)
            .stdin(Stdio::null())
            .stdout(file(&output))
            .stderr(file(&log));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CROWFLY_NET_")) {
            command.env_remove(name);
        }
        command.env_remove("NCCL_NET");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let child = command.spawn().expect("the player starts");
        Player { child, output, log }
    }

    fn both(&self, scene: &str, more: &[&str]) -> (Ended, Ended) {
        let (west, east) = (
            self.play("west", scene, more),
            self.play("east", scene, more),
        );
        (west.wait(), east.wait())
    }

    #[track_caller]
    fn plays(&self, scene: &str) -> (Ended, Ended) {
        let (west, east) = self.both(scene, &[]);
        assert!(
            west.ok && east.ok,
            "{scene}, version {}: west {west:#?}, east {east:#?}",
            self.version
        );
        (west, east)
    }

    /// The lines of all receipts: of comms that sent, of comms that received, and summaries.
    fn lines(&self, event: &str, direction: Option<&str>) -> Vec<Value> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.folder.path())
            .expect("the folder")
            .flatten()
        {
            if !entry.file_name().to_string_lossy().starts_with("receipts-") {
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).expect("receipts");
            found.extend(
                text.lines()
                    .map(|line| serde_json::from_str::<Value>(line).expect("JSON")),
            );
        }
        found.retain(|line| {
            assert_eq!(line["schema"], "crowfly.nccl-net/1");
            line["event"] == event && direction.is_none_or(|way| line["direction"] == way)
        });
        found
    }
}

macro_rules! or_waived {
    () => {
        if let Err(why) = player() {
            waived!("{why}");
        }
    };
}

#[test]
fn messages_of_every_size_arrive_whole_in_every_version() {
    or_waived!();
    for version in VERSIONS {
        Stage::tcp(version).plays("sizes");
    }
}

#[test]
fn grouped_receives_get_the_messages_with_their_tags_in_every_version() {
    or_waived!();
    for version in VERSIONS {
        Stage::tcp(version).plays("groups");
    }
}

#[test]
fn as_many_requests_as_nccl_may_have_are_under_way_in_any_order_of_tags() {
    or_waived!();
    for version in VERSIONS {
        let (west, _) = Stage::tcp(version).plays("many");
        assert!(west.output.starts_with("posted 256\n"), "{}", west.output);
    }
}

#[test]
fn comms_in_both_directions_go_on_at_once_and_no_call_waits() {
    or_waived!();
    for version in VERSIONS {
        Stage::tcp(version).plays("parallel");
    }
}

#[test]
fn a_message_that_does_not_fit_is_an_error_at_both_ends_and_overwrites_nothing() {
    or_waived!();
    for version in VERSIONS {
        let (_, east) = Stage::tcp(version).plays("truncated");
        assert!(east.log.contains("[message-truncated]"), "{}", east.log);
    }
}

#[test]
fn what_a_broken_caller_does_comes_to_an_error_and_to_nothing_worse() {
    or_waived!();
    for version in VERSIONS {
        Stage::tcp(version)
            .play("west", "misuse", &[])
            .wait()
            .is_fine();
        Stage::tcp(version)
            .play("west", "devices", &[])
            .wait()
            .is_fine();
    }
}

#[test]
fn receipts_say_by_which_way_each_byte_went_and_their_sum_is_what_nccl_sent() {
    or_waived!();
    let stage = Stage::tcp(11).receipts();
    stage.plays("sizes");
    // The sizes of the scene, once in each direction.
    let each: u64 = 1 + 4096 + 65_535 + 65_536 + 65_537 + (8 << 20) + 3 + 1_000_003;
    let sent = stage.lines("comm", Some("send"));
    assert_eq!(sent.len(), 2);
    for line in &sent {
        assert_eq!(
            (line["messages"].as_u64(), line["bytes"].as_u64()),
            (Some(10), Some(each))
        );
        assert_eq!(line["ended"]["state"], "closed");
        let shares = line["shares"].as_array().expect("shares");
        assert_eq!(shares.len(), 1, "{shares:?}");
        assert_eq!(
            (
                &shares[0]["path"],
                &shares[0]["class"],
                shares[0]["bytes"].as_u64()
            ),
            (&"tcp".into(), &"socket".into(), Some(each))
        );
        assert_eq!(line["nics"][0]["bytes"].as_u64(), Some(each));
    }
    for line in stage.lines("comm", Some("receive")) {
        assert_eq!(
            (line["messages"].as_u64(), line["bytes"].as_u64()),
            (Some(10), Some(each))
        );
    }
    let summaries = stage.lines("summary", None);
    assert_eq!(
        summaries.last().map(|s| s["sent"]["bytes"].as_u64()),
        Some(Some(each))
    );
    assert_eq!(summaries.last().map(|s| s["comms"].as_u64()), Some(Some(2)));
}

#[test]
fn processes_of_one_host_copy_between_their_memories_and_the_receipt_says_so() {
    or_waived!();
    let stage = Stage::tcp(11).with("CROWFLY_NET_LOCAL", "1").receipts();
    stage.plays("parallel");
    let sent = stage.lines("comm", Some("send"));
    assert_eq!(sent.len(), 8);
    let paths = sent
        .iter()
        .flat_map(|line| line["shares"].as_array().into_iter().flatten());
    let paths: Vec<&str> = paths.filter_map(|share| share["path"].as_str()).collect();
    if paths.iter().all(|path| *path == "tcp") {
        waived!("this kernel lets no process read another's memory");
    }
    assert!(paths.iter().all(|path| *path == "cma"), "{paths:?}");
}

#[test]
fn under_require_a_connection_by_sockets_is_refused_with_what_stands_in_the_way() {
    or_waived!();
    let stage = Stage::tcp(11).with("CROWFLY_NET_POLICY", "require");
    let (_, east) = stage.plays("refused");
    assert!(east.log.contains("[route-refused]"), "{}", east.log);
    assert!(east.log.contains("NCCL_NET=crowfly"), "{}", east.log);
}

#[test]
fn a_variable_that_makes_no_sense_is_refused_at_init_by_name() {
    or_waived!();
    for (name, value) in [
        ("CROWFLY_NET_POLICY", "requires"),
        ("CROWFLY_NET_NICS", "no-such-nic"),
        ("CROWFLY_NET_POLICE", "require"),
    ] {
        let stage = Stage::tcp(11).with(name, value);
        let ended = stage.play("west", "init", &[]).wait();
        assert!(ended.output.starts_with("init answered ") && !ended.output.contains("answered 0"));
        assert!(
            ended.log.contains(value) || ended.log.contains(name),
            "{}",
            ended.log
        );
    }
}

/// The players stream until east is killed; what west says then.
fn killed(stage: &Stage, signal: &str) -> Ended {
    let (west, mut east) = (
        stage.play("west", "stream", &["60"]),
        stage.play("east", "stream", &["60"]),
    );
    let until = Instant::now() + PATIENCE;
    while !west.output().contains("moving") && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let kill = Command::new("kill")
        .args([signal, &east.child.id().to_string()])
        .status();
    assert!(kill.expect("kill").success());
    let ended = west.wait();
    let _ = east.child.kill();
    let _ = east.child.wait();
    ended
}

#[test]
fn a_peer_that_is_killed_in_the_middle_is_an_error_at_once() {
    or_waived!();
    for version in VERSIONS {
        let stage = Stage::tcp(version).receipts();
        let west = killed(&stage, "-KILL");
        west.is_fine();
        assert!(west.output.contains("ended 6 "), "{}", west.output);
        assert!(west.log.contains("[peer-lost]"), "{}", west.log);
        let received = stage.lines("comm", Some("receive"));
        assert_eq!(received.len(), 1);
        assert_eq!(received[0]["ended"]["state"], "failed");
        assert_eq!(received[0]["ended"]["code"], "peer-lost");
    }
}

#[test]
fn a_peer_that_falls_silent_is_an_error_within_the_silence_that_is_allowed() {
    or_waived!();
    let stage = Stage::tcp(11).with("CROWFLY_NET_SILENCE", "2");
    let west = killed(&stage, "-STOP");
    west.is_fine();
    assert!(west.output.contains("ended 6 "), "{}", west.output);
    let after = west
        .output
        .split(" messages, ")
        .nth(1)
        .and_then(|s| s.split(' ').next());
    let after: f64 = after.and_then(|s| s.parse().ok()).expect("seconds");
    assert!((1.0..10.0).contains(&after), "{after} s");
}

#[test]
fn a_process_that_ends_without_closing_leaves_receipts_all_the_same() {
    or_waived!();
    let stage = Stage::tcp(8).receipts();
    let (west, east) = stage.both("leave", &[]);
    assert!(west.ok && east.ok, "west {west:#?}, east {east:#?}");
    let comms = stage.lines("comm", None);
    assert_eq!(comms.len(), 2);
    assert!(
        comms.iter().all(|line| line["ended"]["state"] == "open"),
        "{comms:?}"
    );
    assert!(
        comms
            .iter()
            .all(|line| line["bytes"].as_u64() == Some(1000)),
        "{comms:?}"
    );
    assert_eq!(stage.lines("summary", None).len(), 2);
}
