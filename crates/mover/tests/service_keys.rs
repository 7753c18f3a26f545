//! Objects are asked for with keys that somebody gives for a limited time, and by proxies.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crowfly_mover::objects::{
    AssumedRole, Container, Credentials, Instance, Issuer, Process, Proxies, SignIn, StoreSettings,
    Token, WebIdentity, With,
};
use crowfly_mover::service::{Asked, Auth, Copied, Copy, ServiceError, Side};
use ring::digest;

#[path = "service_support/issuers.rs"]
mod issuers;
#[path = "service_support/stage.rs"]
mod stage;
#[path = "service_support/store.rs"]
mod store;

use issuers::{Giver, Issuers, Way};
use stage::{asked, copy};
use store::Store;

/// A store with an object, and those who give its key.
struct Ground {
    store: Store,
    issuers: Issuers,
    here: tempfile::TempDir,
}

impl Ground {
    fn new() -> Self {
        let store = Store::start();
        store.put("b/m", b"bytes", "v1");
        Self {
            store,
            issuers: Issuers::start(),
            here: tempfile::tempdir().expect("a folder"),
        }
    }

    fn settings(&self, issuer: Issuer) -> StoreSettings {
        StoreSettings {
            credentials: None,
            issuer: Some(issuer),
            ..self.store.settings()
        }
    }

    fn read(&self, settings: StoreSettings) -> Result<Copied, ServiceError> {
        let from = Side::Object("s3://b/m".parse().expect("an object"));
        copy(Asked {
            store: settings,
            ..asked(from, Side::Host, true, Auth::Open)
        })
    }

    fn code(&self, issuer: &Issuer) -> &'static str {
        let read = self.read(self.settings(issuer.clone()));
        read.map(drop).expect_err("refused").code()
    }

    fn token_file(&self) -> std::path::PathBuf {
        let path = self.here.path().join("token");
        fs::write(&path, "a pod's word\n").expect("written");
        path
    }

    fn instance(&self) -> Issuer {
        Issuer::Instance(Instance::at(Some(&self.issuers.base())))
    }

    fn container(&self) -> Issuer {
        let url = format!("{}/v2/key?x=1", self.issuers.base());
        let token = Token::File(self.token_file());
        Issuer::Container(Container::at(&url, Some(token)).expect("of this host"))
    }

    fn role(&self) -> Issuer {
        Issuer::WebIdentity(WebIdentity {
            endpoint: self.issuers.base(),
            role: "arn:aws:iam::12:role/r".into(),
            session: "s".into(),
            token_file: self.token_file(),
        })
    }

    /// A role that is taken on with the key that somebody has, or gives.
    fn assumed(&self, with: With) -> Issuer {
        Issuer::Assumed(AssumedRole {
            endpoint: self.issuers.base(),
            region: "eu-test-1".into(),
            role: "arn:aws:iam::12:role/r".into(),
            session: "s".into(),
            external_id: Some("a word & more".into()),
            seconds: Some(900),
            with,
        })
    }

    /// A command that is a script.
    fn process(&self, script: &str) -> Issuer {
        let path = self.here.path().join("a tool");
        fs::write(&path, script).expect("written");
        let line = format!("/bin/sh \"{}\" '--as me'", path.display());
        Issuer::Process(Process::of(&line).expect("a command"))
    }

    fn sign_in(&self, lasts: i64) -> Issuer {
        let now = SystemTime::now();
        let over = match u64::try_from(lasts) {
            Ok(lasts) => now + Duration::from_secs(lasts),
            Err(_) => now - Duration::from_secs(lasts.unsigned_abs()),
        };
        let over = humantime::format_rfc3339_seconds(over);
        let kept = format!("{{\"accessToken\": \"a person's word\", \"expiresAt\": \"{over}\"}}");
        fs::write(self.here.path().join(kept_as("office")), kept).expect("written");
        Issuer::SignIn(SignIn {
            endpoint: Some(self.issuers.base()),
            region: "eu-test-1".into(),
            cache: self.here.path().to_owned(),
            name: "office".into(),
            account: "12".into(),
            role: "r".into(),
        })
    }
}

/// A key of its own, which no store knows.
fn own_key() -> Credentials {
    Credentials {
        access_key: "someone".into(),
        secret_key: store::SECRET.into(),
        session_token: None,
        expires: None,
    }
}

/// What a command prints for the key that the store knows.
const PRINTED: &str = "{\"Version\": 1, \"AccessKeyId\": \"someone\", \
                       \"SecretAccessKey\": \"a secret\", \"SessionToken\": \"a-token\"";

/// The file in which the tool keeps a sign-in.
fn kept_as(name: &str) -> String {
    let sum = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, name.as_bytes());
    let sum: String = sum
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{sum}.json")
}

#[test]
fn given_whoever_gives_keys_it_is_asked_as_it_wants_to_be_and_the_object_is_read() {
    let ground = Ground::new();
    let heard = |issuer: Issuer| {
        let read = ground.read(ground.settings(issuer));
        read.unwrap_or_else(|error| panic!("{error}: {:?}", ground.store.complaint()));
        ground.issuers.asked()
    };
    let instance = heard(ground.instance());
    let lines = instance.iter().map(|r| format!("{} {}", r.method, r.path));
    let roles = "/latest/meta-data/iam/security-credentials/";
    let expected = [
        "PUT /latest/api/token".to_owned(),
        format!("GET {roles}"),
        format!("GET {roles}a-role"),
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
    assert!(
        instance[0].headers["x-aws-ec2-metadata-token-ttl-seconds"]
            .parse::<u32>()
            .is_ok()
    );
    assert_eq!(instance[2].headers["x-aws-ec2-metadata-token"], "a word");

    let container = heard(ground.container());
    assert_eq!(
        (container[0].path.as_str(), container[0].query.as_str()),
        ("/v2/key", "x=1")
    );
    assert_eq!(container[0].headers["authorization"], "a pod's word");

    let role = heard(ground.role());
    let body = String::from_utf8(role[0].body.clone()).expect("text");
    assert_eq!(role[0].method, "POST");
    for part in [
        "Action=AssumeRoleWithWebIdentity",
        "RoleArn=arn%3Aaws%3Aiam%3A%3A12%3Arole%2Fr",
        "RoleSessionName=s",
        "WebIdentityToken=a%20pod%27s%20word",
    ] {
        assert!(body.contains(part), "{body}");
    }

    let sign_in = heard(ground.sign_in(60));
    assert_eq!(sign_in[0].query, "account_id=12&role_name=r");
    assert_eq!(
        sign_in[0].headers["x-amz-sso_bearer_token"],
        "a person's word"
    );
}

#[test]
fn given_a_key_it_serves_all_requests_until_it_is_about_to_end() {
    let ground = Ground::new();
    let asked = |seconds| {
        ground.issuers.is(Giver::For(seconds));
        ground
            .read(ground.settings(ground.container()))
            .expect("read");
        ground.issuers.asked().len()
    };
    assert_eq!(asked(3600), 1);
    assert!(asked(20) > 1, "one that ends soon is exchanged");
    let role = ground.settings(ground.container());
    ground.issuers.is(Giver::For(20));
    ground.read(role).expect("read");
}

#[test]
fn given_whoever_gives_no_key_each_reason_has_its_code() {
    let ground = Ground::new();
    let all = [
        ground.instance(),
        ground.container(),
        ground.role(),
        ground.sign_in(60),
    ];
    for issuer in &all {
        ground.issuers.is(Giver::Refuses("403 Forbidden"));
        assert_eq!(ground.code(issuer), "key-refused", "{issuer:?}");
        ground.issuers.is(Giver::Raves);
        assert_eq!(ground.code(issuer), "key-refused", "{issuer:?}");
    }
    ground.issuers.is(Giver::Refuses("404 Not Found"));
    assert_eq!(ground.code(&ground.instance()), "key-refused");
    ground.issuers.is(Giver::Refuses("401 Unauthorized"));
    assert_eq!(ground.code(&ground.sign_in(60)), "signed-out");
    ground.issuers.is(Giver::For(60));
    assert_eq!(ground.code(&ground.sign_in(-60)), "signed-out");
    fs::write(ground.here.path().join(kept_as("office")), "{}").expect("written");
    let Issuer::SignIn(office) = &all[3] else {
        panic!("the last is a sign-in");
    };
    assert_eq!(ground.code(&Issuer::SignIn(office.clone())), "signed-out");
    let nobody = SignIn {
        name: "nowhere".into(),
        ..office.clone()
    };
    assert_eq!(ground.code(&Issuer::SignIn(nobody)), "signed-out");
    let nowhere = Path::new("/nowhere/token").to_owned();
    let url = format!("{}/key", ground.issuers.base());
    let token = Some(Token::File(nowhere));
    let without = Container::at(&url, token).expect("of this host");
    assert_eq!(ground.code(&Issuer::Container(without)), "token-file");
    fs::write(ground.token_file(), " \n").expect("written");
    let Issuer::WebIdentity(role) = &all[2] else {
        panic!("the third is a role");
    };
    assert_eq!(
        ground.code(&Issuer::WebIdentity(role.clone())),
        "token-file"
    );
    let nobody = Issuer::Instance(Instance::at(Some("http://127.0.0.1:1")));
    assert_eq!(ground.code(&nobody), "store-unreachable");
}

#[test]
fn given_whoever_gives_keys_is_silent_the_copy_ends_at_its_deadline() {
    let ground = Ground::new();
    ground.issuers.is(Giver::Silent);
    for issuer in [ground.instance(), ground.container(), ground.role()] {
        let from = Side::Object("s3://b/m".parse().expect("an object"));
        let want = Asked {
            store: ground.settings(issuer.clone()),
            timeout: Some(Duration::from_millis(300)),
            ..asked(from, Side::Host, true, Auth::Open)
        };
        let error = copy(want).map(drop).expect_err("silent");
        assert_eq!(error.code(), "deadline-exceeded", "{error}");
    }
}

#[test]
fn given_whoever_gives_keys_is_silent_a_cancelled_copy_ends_at_once() {
    let ground = Ground::new();
    ground.issuers.is(Giver::Silent);
    let begun = ground.here.path().join("begun");
    let sleeps = ground.process(&format!("echo > {}; sleep 300", begun.display()));
    for issuer in [ground.role(), ground.assumed(With::Key(own_key())), sleeps] {
        let from = Side::Object("s3://b/m".parse().expect("an object"));
        let is_command = matches!(issuer, Issuer::Process(_));
        let copy = Copy::start(Asked {
            store: ground.settings(issuer.clone()),
            ..asked(from, Side::Host, true, Auth::Open)
        });
        let copy = copy.expect("it starts");
        while !(is_command && begun.exists() || !ground.issuers.asked().is_empty()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let began = std::time::Instant::now();
        copy.cancel();
        let error = copy.wait().map(drop).expect_err("cancelled");
        assert_eq!(error.code(), "cancelled", "{issuer:?}: {error}");
        // The services may take 15 seconds, and the command 60.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(8), "{issuer:?}: {took:?}");
    }
}

#[test]
fn given_a_proxy_all_goes_by_it_save_what_is_excepted() {
    let ground = Ground::new();
    let way = Way::start(None);
    let by = |none: &str| StoreSettings {
        proxies: Proxies {
            http: Some(format!("http://me:a%20word@{}", way.address)),
            https: None,
            none: none.into(),
        },
        ..ground.store.settings()
    };
    ground.read(by("127.0.0.0/8")).expect("read");
    assert!(way.heads().is_empty(), "directly");
    ground.read(by("elsewhere")).expect("read");
    let heads = way.heads();
    let store = ground.store.endpoint().replace("http://", "");
    assert!(
        heads[0].starts_with(&format!("CONNECT {store} ")),
        "{heads:?}"
    );
    let word = heads[0].to_ascii_lowercase();
    assert!(word.contains("proxy-authorization: basic"), "{word}");
    // Whoever gives keys in the network is reached the same way, and whoever is beside this process is not.
    let before = way.heads().len();
    let with = |issuer| StoreSettings {
        credentials: None,
        issuer: Some(issuer),
        ..by("")
    };
    ground.read(with(ground.role())).expect("read");
    let issuers = format!("CONNECT {} ", ground.issuers.address);
    let to_issuers = |from: usize| {
        let heads = way.heads();
        let heads = heads.iter().skip(from);
        heads.filter(|head| head.starts_with(&issuers)).count()
    };
    assert_eq!(to_issuers(before), 1);
    let before = way.heads().len();
    ground.read(with(ground.container())).expect("read");
    assert_eq!(to_issuers(before), 0);
}

#[test]
fn given_a_proxy_that_lets_nobody_through_or_is_none_it_is_named_without_its_password() {
    let ground = Ground::new();
    let way = Way::start(Some("407 Proxy Authentication Required"));
    for (proxy, code) in [
        (format!("http://me:secret@{}", way.address), "proxy-refused"),
        ("http://me:secret@127.0.0.1:1".into(), "store-unreachable"),
        ("gopher://me:secret@127.0.0.1".into(), "bad-proxy"),
    ] {
        let settings = StoreSettings {
            proxies: Proxies {
                http: Some(proxy.clone()),
                ..Proxies::default()
            },
            ..ground.store.settings()
        };
        let error = ground.read(settings).map(drop).expect_err("no way");
        assert_eq!(error.code(), code, "{error}");
        let told = error.to_string();
        let (_, host) = proxy.split_once('@').expect("a host");
        assert!(told.contains(host) && !told.contains("secret"), "{told}");
    }
}

#[test]
fn given_a_key_a_role_is_taken_on_with_a_signed_request_whoever_gave_the_key() {
    let ground = Ground::new();
    let first = ground.assumed(With::Key(own_key()));
    for with in [
        With::Key(own_key()),
        With::Issuer(Box::new(ground.container())),
        With::Issuer(Box::new(first)),
    ] {
        let read = ground.read(ground.settings(ground.assumed(with)));
        read.unwrap_or_else(|error| panic!("{error}: {:?}", ground.store.complaint()));
        let asked = ground.issuers.asked();
        let role = asked.last().expect("asked");
        let body = String::from_utf8(role.body.clone()).expect("text");
        assert_eq!((role.method.as_str(), role.path.as_str()), ("POST", "/"));
        for part in [
            "Action=AssumeRole&",
            "DurationSeconds=900",
            "ExternalId=a%20word%20%26%20more",
            "RoleArn=arn%3Aaws%3Aiam%3A%3A12%3Arole%2Fr",
            "RoleSessionName=s",
        ] {
            assert!(body.contains(part), "{body}");
        }
        store::check(role, &ground.issuers.address, "sts").expect("signed");
    }
    ground.issuers.is(Giver::Refuses("403 Forbidden"));
    let role = ground.assumed(With::Key(own_key()));
    assert_eq!(ground.code(&role), "key-refused");
    ground.issuers.is(Giver::Raves);
    assert_eq!(ground.code(&role), "key-refused");
}

#[test]
fn given_a_command_it_is_run_as_it_is_written_and_its_key_counts_until_it_says() {
    let ground = Ground::new();
    let used = ground.here.path().join("used");
    let script = |expiration: &str| {
        format!(
            "printf '%s|' \"$@\" >> {}\nprintf '%s' '{PRINTED}{expiration}}}'\n",
            used.display()
        )
    };
    let runs = |expiration: &str| {
        fs::write(&used, "").expect("written");
        let read = ground.read(ground.settings(ground.process(&script(expiration))));
        read.unwrap_or_else(|error| panic!("{error}: {:?}", ground.store.complaint()));
        fs::read_to_string(&used).expect("it ran")
    };
    assert_eq!(
        runs(""),
        "--as me|",
        "one that never ends serves all requests"
    );
    let soon = SystemTime::now() + Duration::from_secs(20);
    let soon = humantime::format_rfc3339_seconds(soon);
    let often = runs(&format!(", \"Expiration\": \"{soon}\""));
    assert!(
        often.len() > "--as me|".len(),
        "one that ends soon is asked for again"
    );
}

#[test]
fn given_a_command_that_gives_no_key_it_is_said_why_in_short_and_nothing_that_it_printed() {
    let ground = Ground::new();
    let long = "x".repeat(4_000);
    let cases = [
        (
            "echo a secret; echo no such \u{1b}[31mperson >&2; exit 3",
            "no such [31mperson",
        ),
        ("exit 7", "it said nothing"),
        ("echo a secret", "is no key"),
        ("true", "is no key"),
        (
            "printf '{\"Version\": 2, \"AccessKeyId\": \"a\", \"SecretAccessKey\": \"s\"}'",
            "version 2",
        ),
        (
            "printf '{\"Version\": 1, \"AccessKeyId\": \"a\", \"SecretAccessKey\": \"s\", \
             \"Expiration\": \"2020-01-02T03:04:05Z\"}'",
            "is over",
        ),
        (
            "printf '{\"Version\": 1, \"AccessKeyId\": \"a\", \"SecretAccessKey\": \"s\", \
             \"Expiration\": \"some day\"}'",
            "Expiration",
        ),
        (&format!("echo {long} >&2; exit 1"), "xxx"),
        ("yes secret | head -c 1000000; exit 1", "it said nothing"),
    ];
    for (script, expected) in cases {
        let settings = ground.settings(ground.process(script));
        let error = ground.read(settings).map(drop).expect_err(script);
        let told = error.to_string();
        assert_eq!(error.code(), "key-refused", "{told}");
        assert!(told.contains(expected), "{script}: {told}");
        assert!(
            !told.contains("secret") && !told.contains('\u{1b}'),
            "{told}"
        );
        assert!(told.len() < 400, "{} letters", told.len());
    }
    let nowhere = Process::of("/nowhere/tool --token secret").expect("a command");
    let settings = ground.settings(Issuer::Process(nowhere));
    let told = ground.read(settings).map(drop).expect_err("there is none");
    assert_eq!(told.code(), "key-refused");
    let told = told.to_string();
    assert!(
        told.contains("/nowhere/tool") && !told.contains("secret"),
        "{told}"
    );
}

#[test]
fn given_a_command_that_does_not_end_the_copy_ends_at_its_deadline_and_so_does_the_command() {
    let ground = Ground::new();
    let left = ground.here.path().join("left");
    let script = format!("sleep 1; echo > {}", left.display());
    let from = Side::Object("s3://b/m".parse().expect("an object"));
    let want = Asked {
        store: ground.settings(ground.process(&script)),
        timeout: Some(Duration::from_millis(300)),
        ..asked(from, Side::Host, true, Auth::Open)
    };
    let error = copy(want).map(drop).expect_err("it sleeps");
    assert_eq!(error.code(), "deadline-exceeded", "{error}");
    std::thread::sleep(Duration::from_secs(2));
    assert!(!left.exists(), "it went on");
    // Nobody waits for what it started and left behind with its output open.
    let script = format!("sleep 60 & printf '%s' '{PRINTED}}}'");
    let began = std::time::Instant::now();
    let settings = ground.settings(ground.process(&script));
    ground.read(settings).expect("there was a key");
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}
