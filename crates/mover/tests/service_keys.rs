//! Objects are asked for with keys that somebody gives for a limited time, and by proxies.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crowfly_mover::objects::{
    Container, Instance, Issuer, Proxies, SignIn, StoreSettings, Token, WebIdentity,
};
use crowfly_mover::service::{Asked, Auth, Copied, ServiceError, Side};
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
