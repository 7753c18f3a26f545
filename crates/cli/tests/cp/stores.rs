//! Copies to and from a store as processes: what the variables and files say counts, and a signal leaves
//! nothing at the store.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::issuers::{Giver, Issuers, Way};
use super::stage::{await_that, crowfly, document, folder, pattern, send};
use super::store::{Mood, Store};

const MIB: usize = 1 << 20;
/// Long enough for a busy machine, and shorter than a request to a store may take.
const PROMPTLY: Duration = Duration::from_secs(20);

/// A copy whose surroundings say nothing of stores but what is put there.
fn copy(folder: &Path, arguments: &[&str]) -> Command {
    let mut all = vec!["cp", "--json"];
    all.extend(arguments);
    alone(crowfly(folder, &all), folder)
}

fn alone(mut command: Command, folder: &Path) -> Command {
    let told = std::env::vars_os().map(|(name, _)| name);
    for name in told.filter(|name| name.to_string_lossy().starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", folder);
    command
}

fn with_variables(folder: &Path, store: &Store, arguments: &[&str]) -> Command {
    surrounded(copy(folder, arguments), folder, store)
}

fn surrounded(command: Command, folder: &Path, store: &Store) -> Command {
    let settings = store.settings();
    let key = settings.credentials.expect("a key");
    let mut command = alone(command, folder);
    command
        .env("AWS_ENDPOINT_URL", store.endpoint())
        .env("AWS_REGION", settings.region.expect("a region"))
        .env("AWS_ACCESS_KEY_ID", key.access_key)
        .env("AWS_SECRET_ACCESS_KEY", key.secret_key)
        .env("AWS_SESSION_TOKEN", key.session_token.expect("a token"));
    command
}

fn ended(command: &mut Command) -> (serde_json::Value, Option<i32>) {
    let output: Output = command.output().expect("it starts");
    (document(&output), output.status.code())
}

#[test]
fn given_variables_or_a_profile_a_file_goes_to_the_store_and_comes_back() {
    let store = Store::start();
    store.bucket("b");
    let folder = folder("cp-store");
    let bytes = pattern(100_000);
    fs::write(folder.join("m"), &bytes).expect("written");
    let (told, status) = ended(&mut with_variables(&folder, &store, &["m", "s3://b/dir/"]));
    assert_eq!(status, Some(0), "{told}");
    assert_eq!(told["receipt"]["verification"]["state"], "agreed");
    assert_eq!(told["to"], "s3://b/dir/m");
    assert!(store.get("b/dir/m").expect("there") == bytes);
    fs::create_dir(folder.join(".aws")).expect("made");
    let credentials = "[job]\naws_access_key_id=someone\naws_secret_access_key=a secret\n\
                       aws_session_token=a-token\n";
    fs::write(folder.join(".aws/credentials"), credentials).expect("written");
    let config = format!(
        "[profile job]\nregion = eu-test-1\nendpoint_url = {}\n",
        store.endpoint()
    );
    fs::write(folder.join(".aws/config"), config).expect("written");
    let mut back = copy(&folder, &["s3://b/dir/m", "back"]);
    let (told, status) = ended(back.env("AWS_PROFILE", "job"));
    assert_eq!(status, Some(0), "{told}");
    assert!(fs::read(folder.join("back")).expect("there") == bytes);
    let mut nobody = copy(&folder, &["s3://b/dir/m", "back"]);
    let (told, status) = ended(nobody.env("AWS_PROFILE", "nobody"));
    assert_eq!(
        (told["error"]["code"].as_str(), status),
        (Some("no-such-profile"), Some(66))
    );
}

#[test]
fn given_what_a_store_refuses_the_code_the_status_and_the_hint_say_what_to_do() {
    let store = Store::start();
    store.put("b/there", b"what was there", "v1");
    let folder = folder("cp-store-refused");
    fs::write(folder.join("m"), "bytes").expect("written");
    let refused = |mood, arguments: &[&str]| {
        store.is(mood);
        let (told, status) = ended(&mut with_variables(&folder, &store, arguments));
        let word = |name: &str| told["error"][name].as_str().unwrap_or_default().to_owned();
        (word("code"), status.expect("no signal"), word("hint"))
    };
    let expected = [
        (
            Mood::Elsewhere,
            "s3://b/m",
            "wrong-region",
            66,
            "AWS_REGION",
        ),
        (Mood::Yesterday, "s3://b/m", "clock-skew", 69, "clock"),
        (
            Mood::ReadOnly,
            "s3://b/m",
            "object-denied",
            66,
            "AWS_PROFILE",
        ),
        (
            Mood::Well,
            "s3://none/m",
            "bucket-not-found",
            66,
            "AWS_ENDPOINT_URL",
        ),
        (
            Mood::Well,
            "s3://b/there",
            "object-exists",
            73,
            "--no-clobber",
        ),
        (Mood::Flips, "s3://b/m", "data-differs", 2, "again"),
    ];
    for (mood, to, code, status, words) in expected {
        let (found, ended, hint) = refused(mood, &["--no-clobber", "m", to]);
        assert_eq!((found.as_str(), ended), (code, status), "{mood:?}");
        assert!(hint.contains(words), "{hint}");
    }
    let (code, status, _) = refused(Mood::Well, &["--no-clobber", "m", "copy"]);
    assert_eq!((code.as_str(), status), ("not-copied", 64));
    let mut command = with_variables(&folder, &store, &["s3://b/there", "copy"]);
    let (told, status) = ended(command.env("AWS_CA_BUNDLE", "m"));
    assert_eq!(
        (told["error"]["code"].as_str(), status),
        (Some("bad-authorities"), Some(66))
    );
}

#[test]
fn given_two_objects_the_store_copies_and_given_a_profile_for_one_side_it_is_another_store() {
    let (store, other) = (Store::start(), Store::start());
    let folder = folder("cp-store-to-store");
    let bytes = pattern(100_000);
    store.put_written("b/m", &bytes, None);
    other.bucket("c");
    let (told, status) = ended(&mut with_variables(
        &folder,
        &store,
        &["s3://b/m", "s3://b/n"],
    ));
    assert_eq!(status, Some(0), "{told}");
    assert!(store.get("b/n").expect("there") == bytes);
    let leg = &told["legs"][0];
    assert_eq!(
        (&leg["doing"], &leg["shares"][0]["path"]),
        (&"within".into(), &"store".into())
    );
    assert_eq!(told["receipt"]["verification"]["algorithm"], "etag");
    let shown = crowfly(&folder, &["cp", "s3://b/m", "s3://b/o"]);
    let output = surrounded(shown, &folder, &store)
        .output()
        .expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("none of it passed this machine"), "{text}");

    let profile = format!(
        "[profile far]\nregion = eu-test-1\nendpoint_url = {}\naws_access_key_id = someone\n\
         aws_secret_access_key = a secret\naws_session_token = a-token\n",
        other.endpoint()
    );
    fs::create_dir(folder.join(".aws")).expect("made");
    fs::write(folder.join(".aws/config"), profile).expect("written");
    let far = ["--to-profile", "far", "s3://b/m", "s3://c/m"];
    let (told, status) = ended(&mut with_variables(&folder, &store, &far));
    assert_eq!(status, Some(0), "{told}");
    assert!(other.get("c/m").expect("there") == bytes);
    assert_eq!(told["receipt"]["bounced"], 100_000);
    let back = ["--from-profile", "far", "s3://c/m", "s3://b/back"];
    let (told, status) = ended(&mut with_variables(&folder, &store, &back));
    assert_eq!(status, Some(0), "{told}");
    assert!(store.get("b/back").expect("there") == bytes);
    let refused = ["--from-profile", "far", "m", "s3://b/x"];
    let (told, status) = ended(&mut with_variables(&folder, &store, &refused));
    assert_eq!(
        (told["error"]["code"].as_str(), status),
        (Some("usage"), Some(64))
    );
}

#[test]
fn given_what_is_said_wrongly_of_stores_it_is_refused_by_its_name_before_anybody_is_asked() {
    let store = Store::start();
    store.put("b/m", b"bytes", "v1");
    let folder = folder("cp-store-misled");
    let refused = |name: &str, value: &str| {
        let mut command = with_variables(&folder, &store, &["s3://b/m", "host:"]);
        let (told, status) = ended(command.env(name, value));
        let message = told["error"]["message"].as_str().unwrap_or_default();
        (
            told["error"]["code"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            status,
            message.to_owned(),
        )
    };
    for endpoint in [
        "http://127.0.0.1:84301",
        "http://127.0.0.1:abc",
        "http://127.0.0.1:0",
        "http://[::1",
    ] {
        let (code, status, message) = refused("AWS_ENDPOINT_URL", endpoint);
        assert_eq!(
            (code.as_str(), status),
            ("bad-endpoint", Some(64)),
            "{endpoint}"
        );
        assert!(message.contains(endpoint), "{message}");
    }
    for (name, value) in [("AWS_REGION", "eu\n"), ("AWS_SESSION_TOKEN", "a b")] {
        let (code, status, message) = refused(name, value);
        assert_eq!((code.as_str(), status), ("bad-variable", Some(64)));
        assert!(message.contains(name), "{message}");
    }
    let (code, status, message) = refused("AWS_SECRET_ACCESS_KEY", "");
    assert_eq!((code.as_str(), status), ("half-a-key", Some(64)));
    assert!(
        message.contains("AWS_SECRET_ACCESS_KEY is not"),
        "{message}"
    );
    for arguments in [
        &["s3://b/m", "host:", "--size", "1GiB"][..],
        &["", "s3://b/n"],
        &["s3://b/m", ""],
    ] {
        let (told, status) = ended(&mut with_variables(&folder, &store, arguments));
        assert_eq!(
            (told["error"]["code"].as_str(), status),
            (Some("usage"), Some(64)),
            "{told}"
        );
    }
    let late = ["s3://b/m", "host:", "--timeout", "1us"];
    let (told, status) = ended(&mut with_variables(&folder, &store, &late));
    assert_eq!(told["error"]["code"], "deadline-exceeded", "{told}");
    assert_ne!(status, Some(0));
}

#[test]
fn given_host_memory_a_pattern_goes_to_the_store_and_is_what_was_put_there() {
    let store = Store::start();
    store.bucket("b");
    let folder = folder("cp-store-host");
    let up = ["host:", "s3://b/m", "--size", "9MiB"];
    let (told, status) = ended(&mut with_variables(&folder, &store, &up));
    assert_eq!(status, Some(0), "{told}");
    assert_eq!(store.get("b/m").expect("there").len(), 9 << 20);
    assert_eq!(told["from"], "host");
    assert_eq!(told["receipt"]["verification"]["state"], "matched");
    let shares = told["receipt"]["shares"].as_array().expect("shares");
    assert_eq!(
        (shares.len(), shares[0]["bytes"].as_u64()),
        (1, Some(9 << 20))
    );
    for wrong in ["--resume", "--recursive", "--preserve", "--policy=require"] {
        let (told, status) = ended(&mut with_variables(
            &folder,
            &store,
            &[&up[..], &[wrong]].concat(),
        ));
        assert_ne!(status, Some(0), "{wrong}: {told}");
    }
}

#[test]
fn given_variables_of_a_container_and_a_proxy_they_are_asked_and_gone_by() {
    let store = Store::start();
    store.put("b/m", b"bytes", "v1");
    let (issuers, way) = (Issuers::start(), Way::start(None));
    let folder = folder("cp-store-surroundings");
    let mut command = copy(&folder, &["s3://b/m", "m"]);
    command
        .env("AWS_ENDPOINT_URL", store.endpoint())
        .env("AWS_REGION", "eu-test-1")
        .env(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            format!("{}/key", issuers.base()),
        )
        .env("http_proxy", format!("http://{}", way.address))
        .env_remove("no_proxy")
        .env_remove("NO_PROXY");
    let (told, status) = ended(&mut command);
    assert_eq!(status, Some(0), "{told}");
    assert_eq!(issuers.asked()[0].path, "/key");
    assert!(!way.heads().is_empty());
    issuers.is(Giver::Refuses("500 Down"));
    let (told, status) = ended(&mut command);
    assert_eq!(
        (told["error"]["code"].as_str(), status),
        (Some("key-refused"), Some(66))
    );
}

#[test]
fn given_an_interrupted_copy_its_parts_are_removed_at_the_store_or_gone_on_with() {
    let store = Store::start();
    store.bucket("b");
    let folder = folder("cp-store-interrupted");
    let bytes = pattern(40 * MIB);
    fs::write(folder.join("m"), &bytes).expect("written");
    store.put_written("b/other", &bytes, Some(16 * MIB));
    for (from, resume) in [("s3://b/other", false), ("m", false), ("m", true)] {
        store.is(Mood::Holds(2));
        let mut arguments = vec![from, "s3://b/m"];
        arguments.extend(resume.then_some("--resume"));
        let mut command = with_variables(&folder, &store, &arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null());
        let child = child.spawn().expect("it starts");
        await_that("two parts are there", || store.begun() == [2]);
        send(&child, "INT");
        // The store goes on holding the others: nobody waits for it.
        let began = Instant::now();
        let output = child.wait_with_output().expect("it ends");
        assert!(began.elapsed() < PROMPTLY, "{from}: {:?}", began.elapsed());
        assert_eq!(output.status.code(), Some(130));
        assert_eq!(document(&output)["error"]["code"], "interrupted");
        assert!(store.get("b/m").is_none());
        let left: &[usize] = if resume { &[2] } else { &[] };
        assert_eq!(store.begun(), left);
    }
    store.is(Mood::Well);
    let (told, status) = ended(&mut with_variables(
        &folder,
        &store,
        &["--resume", "m", "s3://b/m"],
    ));
    // What was on its way when the copy was ended may have arrived since.
    let resumed = told["resumed"].as_u64().unwrap_or_default();
    assert!(resumed >= 16 << 20 && status == Some(0), "{told}");
    assert!(store.get("b/m").expect("there") == bytes && store.begun().is_empty());
}

/// A copy as somebody whose only profile says these lines of how a key is had.
fn by_profile(folder: &Path, store: &Store, lines: &str, arguments: &[&str]) -> Command {
    fs::create_dir_all(folder.join(".aws")).expect("made");
    let config = format!(
        "[profile job]\nregion = eu-test-1\nendpoint_url = {}\n{lines}\n",
        store.endpoint()
    );
    fs::write(folder.join(".aws/config"), config).expect("written");
    let mut command = copy(folder, arguments);
    command.env("AWS_PROFILE", "job");
    command
}

#[test]
fn given_a_signal_while_a_command_is_run_for_a_key_it_ends_and_so_does_all_that_it_started() {
    let store = Store::start();
    store.put("b/m", b"bytes", "v1");
    let folder = folder("cp-store-command");
    fs::write(folder.join("m"), "bytes").expect("written");
    let (tool, pids) = (folder.join("tool"), folder.join("pids"));
    let script = format!(
        "trap '' INT TERM\nsleep 300 &\necho $$ $! > {0}.new\nmv {0}.new {0}\nwait\n",
        pids.display()
    );
    fs::write(&tool, script).expect("written");
    let line = format!("credential_process = /bin/sh {}", tool.display());
    for (arguments, signal) in [
        (["s3://b/m", "back"], "INT"),
        (["m", "s3://b/back"], "TERM"),
    ] {
        let mut command = by_profile(&folder, &store, &line, &arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null());
        let child = child.spawn().expect("it starts");
        await_that("the command runs", || pids.exists());
        send(&child, signal);
        let began = Instant::now();
        let output = child.wait_with_output().expect("it ends");
        assert!(began.elapsed() < PROMPTLY, "{:?}", began.elapsed());
        assert_eq!(output.status.code(), Some(130));
        assert_eq!(document(&output)["error"]["code"], "interrupted");
        let told = fs::read_to_string(&pids).expect("written");
        let all: Vec<&str> = told.split_whitespace().collect();
        assert_eq!(all.len(), 2, "{told}");
        for pid in all {
            await_that("it is gone", || !runs(pid));
        }
        fs::remove_file(&pids).expect("there");
        assert!(!folder.join("back").exists() && store.get("b/back").is_none());
    }
}

#[test]
fn given_a_terminal_a_command_for_a_key_may_ask_its_user_and_ctrl_c_ends_both() {
    if Command::new("script").arg("--version").output().is_err() {
        crowfly_waive::waived!("there is no `script` to be a terminal");
    }
    let store = Store::start();
    store.put("b/m", b"bytes", "v1");
    let folder = folder("cp-store-terminal");
    let (tool, pids) = (folder.join("tool"), folder.join("pids"));
    let key = "{\"Version\": 1, \"AccessKeyId\": \"someone\", \"SecretAccessKey\": \"a secret\", \
               \"SessionToken\": \"a-token\"}";
    let script = format!(
        "echo $$ > {0}.new\nmv {0}.new {0}\nread word < /dev/tty\n[ \"$word\" = sesame ] || exit 9\n\
         printf '%s' '{key}'\n",
        pids.display()
    );
    fs::write(&tool, script).expect("written");
    let line = format!("credential_process = /bin/sh {}", tool.display());
    for (typed, status) in [("sesame\n", 0), ("\u{3}", 130)] {
        let inner = by_profile(&folder, &store, &line, &["s3://b/m", "back"]);
        let words = inner
            .get_args()
            .map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = words.collect();
        let line = format!("{} {}", env!("CARGO_BIN_EXE_crowfly"), words.join(" "));
        let mut terminal = alone(Command::new("script"), &folder);
        terminal
            .args(["-qefc", &line, "/dev/null"])
            .current_dir(&folder)
            .env("AWS_PROFILE", "job")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut terminal = terminal.spawn().expect("it starts");
        await_that("the command asks", || pids.exists());
        let mut keys = terminal.stdin.take().expect("piped");
        std::io::Write::write_all(&mut keys, typed.as_bytes()).expect("typed");
        let began = Instant::now();
        let output = terminal.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(began.elapsed() < PROMPTLY, "{:?}", began.elapsed());
        assert_eq!(output.status.code(), Some(status), "{typed:?}: {told}");
        let pid = fs::read_to_string(&pids).expect("written");
        await_that("the command ends", || !runs(pid.trim()));
        fs::remove_file(&pids).expect("there");
        drop(keys);
    }
    assert_eq!(fs::read(folder.join("back")).expect("copied"), b"bytes");
}

/// Whether there is a process of that number that has not ended.
fn runs(pid: &str) -> bool {
    let Ok(told) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = told.rsplit_once(") ").map(|(_, rest)| rest);
    !state.is_some_and(|state| state.starts_with('Z') || state.starts_with('X'))
}

#[test]
fn given_no_key_the_hint_says_what_to_look_at_for_the_way_by_which_it_was_to_be_had() {
    let (store, issuers) = (Store::start(), Issuers::start());
    store.put("b/m", b"bytes", "v1");
    issuers.is(Giver::Refuses("403 Forbidden"));
    let folder = folder("cp-store-hints");
    fs::write(folder.join("token"), "a word").expect("written");
    let base = issuers.base();
    let told = |lines: &str, variables: &[(&str, &str)]| {
        let mut command = by_profile(&folder, &store, lines, &["s3://b/m", "back"]);
        for (name, value) in variables {
            command.env(name, value);
        }
        let (told, status) = ended(&mut command);
        assert_eq!(
            (told["error"]["code"].as_str(), status),
            (Some("key-refused"), Some(66)),
            "{told}"
        );
        told["error"]["hint"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let key = "aws_access_key_id = someone\naws_secret_access_key = a secret";
    let role =
        format!("role_arn = arn:aws:iam::12:role/r\nsource_profile = own\n[profile own]\n{key}");
    let container = format!("{base}/key");
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, Variables<'_>, &str); 5] = [
        (
            "credential_process = /bin/false",
            &[],
            "credential_process by hand",
        ),
        (&role, &[("AWS_ENDPOINT_URL_STS", &base)], "source_profile"),
        (
            "role_arn = arn:aws:iam::12:role/r\nweb_identity_token_file = token",
            &[("AWS_ENDPOINT_URL_STS", &base)],
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        ),
        (
            "",
            &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &container)],
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ),
        (
            "",
            &[
                ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &base),
                ("AWS_EC2_METADATA_DISABLED", "false"),
            ],
            "AWS_EC2_METADATA_DISABLED",
        ),
    ];
    for (lines, variables, expected) in cases {
        let hint = told(lines, variables);
        assert!(hint.contains(expected), "{lines}: {hint}");
        let others = cases.iter().filter(|(.., other)| *other != expected);
        for (.., other) in others {
            assert!(!hint.contains(other), "{lines}: {hint}");
        }
    }
}
