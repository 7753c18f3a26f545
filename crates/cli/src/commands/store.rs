//! Where objects are and as whom they are asked for: what the variables and files say that every client of
//! S3 knows.

use std::path::{Path, PathBuf};

use crowfly_mover::objects::{
    Container, Credentials, Instance, Issuer, Proxies, StoreSettings, Token, WebIdentity,
};

use crate::failure::{Exit, Failure};
use crate::input;
use crate::path::shown;

mod keys;
mod profile;

use profile::{Files, Identity};

/// The variables, the first that is set of each line.
const ENDPOINT: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const REGION: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
const ACCESS_KEY: [&str; 1] = ["AWS_ACCESS_KEY_ID"];
const SECRET_KEY: [&str; 1] = ["AWS_SECRET_ACCESS_KEY"];
const TOKEN: [&str; 1] = ["AWS_SESSION_TOKEN"];
const PROFILE: [&str; 2] = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"];
const AUTHORITIES: [&str; 1] = ["AWS_CA_BUNDLE"];
/// What OpenSSL and those who follow it read; it counts after what is said of stores.
const ALL_AUTHORITIES: [&str; 1] = ["SSL_CERT_FILE"];
/// With `false` in it the service that cloud machines have is asked for a key wherever this is, and with `true`
/// nowhere.
const NO_INSTANCE: [&str; 1] = ["AWS_EC2_METADATA_DISABLED"];
const INSTANCE: [&str; 1] = ["AWS_EC2_METADATA_SERVICE_ENDPOINT"];
/// Who built the machine, as its firmware says, and what it says on Amazon's.
const VENDOR: &str = "/sys/devices/virtual/dmi/id/sys_vendor";
const AMAZON: &str = "Amazon EC2";
const TOKEN_FILE: [&str; 1] = ["AWS_WEB_IDENTITY_TOKEN_FILE"];
const ROLE: [&str; 1] = ["AWS_ROLE_ARN"];
const SESSION: [&str; 1] = ["AWS_ROLE_SESSION_NAME"];
/// What a session is called when nobody says.
const OWN_SESSION: &str = "crowfly";
const TOKENS: [&str; 1] = ["AWS_ENDPOINT_URL_STS"];
const CONTAINER_PATH: [&str; 1] = ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"];
const CONTAINER_URL: [&str; 1] = ["AWS_CONTAINER_CREDENTIALS_FULL_URI"];
const CONTAINER_TOKEN: [&str; 1] = ["AWS_CONTAINER_AUTHORIZATION_TOKEN"];
const CONTAINER_TOKEN_FILE: [&str; 1] = ["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];
/// As curl and those who follow it read them: HTTP_PROXY in capitals is what a web server may set from what a
/// stranger sends.
const PROXY_TO_HTTPS: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
const PROXY_TO_HTTP: [&str; 3] = ["http_proxy", "all_proxy", "ALL_PROXY"];
const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// The longest of the two files that is read, in bytes.
const MAX_FILE: usize = 1 << 20;

/// What the environment and the files in it say; of a profile that is named here, what it says counts before
/// all variables, and its key alone.
pub fn from_environment(profile: Option<&str>) -> Result<StoreSettings, Failure> {
    let surroundings = Surroundings {
        variable: &|name| std::env::var(name).ok(),
        file: &text_of,
    };
    surroundings.settings(profile)
}

/// A file's text; of one that is not there, nothing.
fn text_of(path: &Path) -> Result<String, Failure> {
    // Whoever wants no file read says so by this one.
    if path == Path::new("/dev/null") || !path.exists() {
        return Ok(String::new());
    }
    let bytes = input::read_bounded(path, MAX_FILE)?;
    match String::from_utf8(bytes) {
        Ok(text) if text.len() <= MAX_FILE => Ok(text),
        _ => Err(Failure::new(
            "bad-profiles",
            Exit::BadData,
            format!(
                "{} is no file of profiles: it is no text, or too long",
                shown(path)
            ),
        )),
    }
}

/// The variables and files that are looked at.
struct Surroundings<'s> {
    variable: &'s dyn Fn(&str) -> Option<String>,
    /// The text of a file; nothing where there is none.
    file: &'s dyn Fn(&Path) -> Result<String, Failure>,
}

impl Surroundings<'_> {
    fn first(&self, names: &[&str]) -> Option<String> {
        let mut set = names.iter().filter_map(|name| (self.variable)(name));
        set.find(|value| !value.is_empty())
    }

    fn settings(&self, named: Option<&str>) -> Result<StoreSettings, Failure> {
        let first = |names: &[&str]| self.first(names);
        let files = self.files()?;
        let wanted = named.map(str::to_owned).or_else(|| first(&PROFILE));
        let profile = files.profile(wanted.as_deref().unwrap_or("default"));
        if let (None, Some(wanted)) = (&profile, &wanted) {
            let what = format!("no file has a profile `{wanted}`");
            return Err(Failure::new("no-such-profile", Exit::NoInput, what)
                .hint("~/.aws/credentials and ~/.aws/config are read, or what AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name"));
        }
        let profile = profile.unwrap_or_default();
        let either = |names: &[&str], said: Option<String>| match named {
            Some(_) => said.or_else(|| first(names)),
            None => first(names).or(said),
        };
        let authorities =
            either(&AUTHORITIES, profile.get("ca_bundle")).or_else(|| first(&ALL_AUTHORITIES));
        let mut settings = StoreSettings {
            endpoint: either(&ENDPOINT, profile.endpoint()),
            region: either(&REGION, profile.get("region")),
            credentials: None,
            issuer: None,
            proxies: Proxies {
                https: first(&PROXY_TO_HTTPS),
                http: first(&PROXY_TO_HTTP),
                none: first(&NO_PROXY).unwrap_or_default(),
            },
            authorities: authorities.map(PathBuf::from),
        };
        self.readable(&settings)?;
        let keys = match (first(&ACCESS_KEY), first(&SECRET_KEY)) {
            (Some(access_key), Some(secret_key)) => Some((access_key, secret_key)),
            (None, None) => None,
            _ if named.is_some() => None,
            (access_key, _) => {
                let (set, missing) = match access_key {
                    Some(_) => (ACCESS_KEY[0], SECRET_KEY[0]),
                    None => (SECRET_KEY[0], ACCESS_KEY[0]),
                };
                let what = format!("{set} is set and {missing} is not: a key has both");
                return Err(Failure::new("half-a-key", Exit::Usage, what));
            }
        };
        let from_variables = keys.filter(|_| named.is_none());
        settings.credentials = match from_variables {
            Some((access_key, secret_key)) => Some(Credentials {
                access_key,
                secret_key,
                session_token: first(&TOKEN),
                expires: None,
            }),
            None => profile.credentials().filter(|_| !profile.is_role()),
        };
        if settings.credentials.is_none() {
            let name = wanted.as_deref().unwrap_or("default");
            let own = keys::Own {
                surroundings: self,
                files: &files,
                settings: &settings,
            };
            settings.issuer = match named {
                Some(_) => own.of_profile(name, &profile)?,
                None => self.issuer((name, &profile), &own)?,
            };
        }
        Ok(settings)
    }

    /// Refuses what could stand in no request, by the name of whoever says it.
    fn readable(&self, settings: &StoreSettings) -> Result<(), Failure> {
        let refuse = |what: String| {
            Err(Failure::new("bad-variable", Exit::Usage, what)
                .hint("spaces and line ends often come from a file that was read into it"))
        };
        let word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        // It is signed with and never sent.
        let line = |text: &str| !text.contains(char::is_control);
        for names in [&REGION[..], &ACCESS_KEY, &SECRET_KEY, &TOKEN] {
            for name in names {
                let Some(value) = (self.variable)(name) else {
                    continue;
                };
                let fine = match names == SECRET_KEY {
                    true => line(&value),
                    false => word(&value),
                };
                if !fine {
                    return refuse(format!(
                        "{name} has a space, a line end or another letter in it that none has"
                    ));
                }
            }
        }
        let part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match &settings.region {
            Some(region) if !region.chars().all(part) => {
                refuse(format!("`{region}` is no region of a store"))
            }
            _ => Ok(()),
        }
    }

    /// Who gives a key where none is written down.
    fn issuer(
        &self,
        (name, profile): (&str, &profile::Profile),
        own: &keys::Own<'_>,
    ) -> Result<Option<Issuer>, Failure> {
        let first = |names: &[&str]| self.first(names);
        if let Some((role, token_file)) = first(&ROLE).zip(first(&TOKEN_FILE)) {
            let identity = Identity {
                role,
                token_file,
                session: first(&SESSION),
            };
            return Ok(Some(self.role(identity, own.settings)));
        }
        if let Some(issuer) = own.of_profile(name, profile)? {
            return Ok(Some(issuer));
        }
        if let Some(container) = self.container()? {
            return Ok(Some(container));
        }
        let asked = match first(&NO_INSTANCE).map(|off| off.to_ascii_lowercase()) {
            Some(off) if off == "false" => true,
            Some(off) if off == "true" => false,
            // Elsewhere nobody would answer, and that would take a while.
            _ => {
                own.settings.endpoint.is_none() && (self.file)(Path::new(VENDOR))?.trim() == AMAZON
            }
        };
        Ok(asked.then(|| self.instance()))
    }

    /// The service beside a container, where the variables name one.
    fn container(&self) -> Result<Option<Issuer>, Failure> {
        let first = |names: &[&str]| self.first(names);
        let token = match first(&CONTAINER_TOKEN_FILE) {
            Some(path) => Some(Token::File(path.into())),
            None => first(&CONTAINER_TOKEN).map(Token::Text),
        };
        if let Some(path) = first(&CONTAINER_PATH) {
            return Ok(Some(Issuer::Container(Container::of(&path, token))));
        }
        match first(&CONTAINER_URL) {
            Some(url) => Ok(Some(Issuer::Container(Container::at(&url, token)?))),
            None => Ok(None),
        }
    }

    fn instance(&self) -> Issuer {
        Issuer::Instance(Instance::at(self.first(&INSTANCE).as_deref()))
    }

    fn role(&self, identity: Identity, settings: &StoreSettings) -> Issuer {
        let usual = || WebIdentity::endpoint_in(settings.region.as_deref());
        Issuer::WebIdentity(WebIdentity {
            endpoint: self.first(&TOKENS).unwrap_or_else(usual),
            role: identity.role,
            session: identity.session.unwrap_or_else(|| OWN_SESSION.to_owned()),
            token_file: identity.token_file.into(),
        })
    }

    /// The two files that tools share, or what stands in their place.
    fn files(&self) -> Result<Files, Failure> {
        let home = self.first(&["HOME"]).map(PathBuf::from);
        let read = |variable: &str, usual: &str| -> Result<String, Failure> {
            let said = self.first(&[variable]).map(PathBuf::from);
            let usual = home.as_ref().map(|home| home.join(usual));
            let Some(path) = said.or(usual) else {
                return Ok(String::new());
            };
            (self.file)(&path)
        };
        Ok(Files::of(
            &read("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")?,
            &read("AWS_CONFIG_FILE", ".aws/config")?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "[default]\naws_access_key_id = d\naws_secret_access_key = s\n\
                               [job]\naws_access_key_id=j\naws_secret_access_key=t\naws_session_token=u\n";
    const CONFIG: &str = "[default]\nregion = r1\n[profile job]\nregion = r2\nservices = near\n\
                          ca_bundle = /ca.pem\n[services near]\ns3 =\n  endpoint_url = http://near\n\
                          [profile person]\nsso_session = x\nsso_account_id = 12\nsso_role_name = r\n\
                          [sso-session x]\nsso_region = r4\nsso_start_url = https://x\n\
                          [profile pod]\nrole_arn = arn:p\nweb_identity_token_file = /t\n\
                          [profile other]\nlogin_session = l\n";

    fn read_as(named: Option<&str>, set: &[(&str, &str)]) -> Result<StoreSettings, Failure> {
        let surroundings = Surroundings {
            variable: &|name| {
                let mut all = set.iter().filter(|(known, _)| *known == name);
                all.next().map(|(_, value)| (*value).to_owned())
            },
            file: &|path| match path.to_str() {
                Some("/home/.aws/credentials") => Ok(CREDENTIALS.to_owned()),
                Some("/home/.aws/config") => Ok(CONFIG.to_owned()),
                Some(VENDOR) => {
                    let vendor = set.iter().find(|(name, _)| *name == "VENDOR");
                    Ok(vendor
                        .map(|(_, value)| (*value).to_owned())
                        .unwrap_or_default())
                }
                Some("/denied") => Err(Failure::new("input-denied", Exit::NoInput, "denied")),
                _ => Ok(String::new()),
            },
        };
        surroundings.settings(named)
    }

    fn read(set: &[(&str, &str)]) -> Result<StoreSettings, Failure> {
        read_as(None, set)
    }

    fn settings(set: &[(&str, &str)]) -> StoreSettings {
        read(set).expect("settings")
    }

    #[test]
    fn the_more_special_variable_counts_and_half_a_key_is_an_error() {
        let both = [
            ("AWS_ENDPOINT_URL", "http://a"),
            ("AWS_ENDPOINT_URL_S3", "http://b"),
        ];
        assert_eq!(settings(&both).endpoint.as_deref(), Some("http://b"));
        let region = [("AWS_REGION", ""), ("AWS_DEFAULT_REGION", "r")];
        assert_eq!(settings(&region).region.as_deref(), Some("r"));
        let half = |set: &[(&str, &str)]| {
            let error = read(set).map(drop).expect_err("half of a key");
            assert_eq!(error.code(), "half-a-key");
            error.message().to_owned()
        };
        let without = half(&[("AWS_ACCESS_KEY_ID", "k")]);
        assert!(
            without.contains("AWS_SECRET_ACCESS_KEY is not"),
            "{without}"
        );
        let without = half(&[("AWS_SECRET_ACCESS_KEY", "s")]);
        assert!(without.contains("AWS_ACCESS_KEY_ID is not"), "{without}");
        for name in ["AWS_REGION", "AWS_SESSION_TOKEN", "AWS_SECRET_ACCESS_KEY"] {
            let error = read(&[(name, "a b\n")]).map(drop).expect_err("no word");
            assert_eq!(error.code(), "bad-variable");
            assert!(error.message().contains(name), "{}", error.message());
        }
        let error = read(&[("AWS_REGION", "a/b")])
            .map(drop)
            .expect_err("no region");
        assert_eq!(error.code(), "bad-variable");
        let keys = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")];
        assert_eq!(settings(&keys).credentials.expect("a key").access_key, "k");
        let authorities = |set: &[(&str, &str)]| settings(set).authorities;
        let both = [("SSL_CERT_FILE", "/all"), ("AWS_CA_BUNDLE", "/store")];
        assert_eq!(authorities(&both), Some("/store".into()));
        assert_eq!(authorities(&both[..1]), Some("/all".into()));
    }

    #[test]
    fn a_profile_says_what_no_variable_does() {
        let home = ("HOME", "/home");
        let default = settings(&[home]);
        assert_eq!(default.region.as_deref(), Some("r1"));
        assert_eq!(default.credentials.expect("a key").access_key, "d");
        let job = settings(&[home, ("AWS_PROFILE", "job")]);
        let key = job.credentials.expect("a key");
        assert_eq!(
            (key.access_key.as_str(), key.secret_key.as_str()),
            ("j", "t")
        );
        assert_eq!(key.session_token.as_deref(), Some("u"));
        assert_eq!(job.endpoint.as_deref(), Some("http://near"));
        assert_eq!(
            (job.region.as_deref(), job.authorities),
            (Some("r2"), Some("/ca.pem".into()))
        );
        let over = settings(&[
            home,
            ("AWS_PROFILE", "job"),
            ("AWS_REGION", "r3"),
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
        ]);
        assert_eq!(over.region.as_deref(), Some("r3"));
        let key = over.credentials.expect("a key");
        assert_eq!((key.access_key.as_str(), key.session_token), ("k", None));
    }

    #[test]
    fn what_is_asked_for_and_cannot_be_had_is_an_error() {
        let code = |set: &[(&str, &str)]| read(set).map(drop).expect_err("refused").code();
        let home = ("HOME", "/home");
        assert_eq!(code(&[home, ("AWS_PROFILE", "none")]), "no-such-profile");
        assert_eq!(code(&[home, ("AWS_PROFILE", "other")]), "profile-not-read");
        assert_eq!(code(&[("AWS_CONFIG_FILE", "/denied")]), "input-denied");
        let far = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://far/key");
        assert_eq!(code(&[far]), "bad-endpoint");
    }

    /// Who gives the key, in one word.
    fn issuer(set: &[(&str, &str)]) -> &'static str {
        match settings(set).issuer {
            None => "nobody",
            Some(Issuer::Instance(_)) => "instance",
            Some(Issuer::Container(_)) => "container",
            Some(Issuer::WebIdentity(_)) => "role",
            Some(Issuer::SignIn(_)) => "sign-in",
            Some(Issuer::Assumed(_)) => "assumed",
            Some(Issuer::Process(_)) => "process",
        }
    }

    #[test]
    fn who_gives_a_key_is_the_first_that_is_known_of_a_file_a_container_and_the_machine() {
        let off = |value| ("AWS_EC2_METADATA_DISABLED", value);
        let endpoint = ("AWS_ENDPOINT_URL", "http://near");
        assert_eq!(issuer(&[]), "nobody");
        assert_eq!(issuer(&[off("False")]), "instance");
        let on_amazons = ("VENDOR", "Amazon EC2");
        assert_eq!(issuer(&[on_amazons]), "instance");
        assert_eq!(issuer(&[on_amazons, endpoint]), "nobody", "another store");
        assert_eq!(issuer(&[on_amazons, off("true")]), "nobody");
        let container = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/k");
        assert_eq!(issuer(&[on_amazons, container]), "container");
        let role = ("AWS_ROLE_ARN", "arn:e");
        assert_eq!(issuer(&[container, role]), "container", "half of a role");
        let token = ("AWS_WEB_IDENTITY_TOKEN_FILE", "/e");
        assert_eq!(issuer(&[container, role, token]), "role");
        let keys = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")];
        let all = [&keys[..], &[container, role, token]].concat();
        assert_eq!(issuer(&all), "nobody", "a key is written down");
    }

    #[test]
    fn a_profile_may_name_a_role_or_a_sign_in() {
        let home = ("HOME", "/home");
        let of = |profile| settings(&[home, ("AWS_PROFILE", profile)]).issuer;
        let expected = WebIdentity {
            endpoint: "https://sts.amazonaws.com".into(),
            role: "arn:p".into(),
            session: "crowfly".into(),
            token_file: "/t".into(),
        };
        assert_eq!(of("pod"), Some(Issuer::WebIdentity(expected)));
        let expected = crowfly_mover::objects::SignIn {
            endpoint: None,
            region: "r4".into(),
            cache: "/home/.aws/sso/cache".into(),
            name: "x".into(),
            account: "12".into(),
            role: "r".into(),
        };
        assert_eq!(of("person"), Some(Issuer::SignIn(expected)));
    }

    #[test]
    fn a_profile_that_is_named_counts_before_the_variables_and_with_its_own_key() {
        let set = [
            ("HOME", "/home"),
            ("AWS_PROFILE", "none"),
            ("AWS_ENDPOINT_URL", "http://a"),
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("AWS_REGION", "r9"),
        ];
        let named = |name| read_as(Some(name), &set).expect("settings");
        let job = named("job");
        assert_eq!(job.endpoint.as_deref(), Some("http://near"));
        assert_eq!(job.region.as_deref(), Some("r2"));
        assert_eq!(job.credentials.expect("a key").access_key, "j");
        let pod = named("pod");
        assert!(pod.credentials.is_none() && pod.issuer.is_some());
        assert_eq!(pod.endpoint.as_deref(), Some("http://a"), "it says none");
        let refused = read_as(Some("nobody"), &set)
            .map(drop)
            .expect_err("refused");
        assert_eq!(refused.code(), "no-such-profile");
    }

    #[test]
    fn proxies_are_those_of_the_usual_variables() {
        let set = [
            ("HTTPS_PROXY", "http://p:1"),
            ("HTTP_PROXY", "http://strangers:1"),
            ("NO_PROXY", "near"),
        ];
        let proxies = settings(&set).proxies;
        assert_eq!(proxies.https.as_deref(), Some("http://p:1"));
        assert_eq!((proxies.http, proxies.none.as_str()), (None, "near"));
        let all = settings(&[("http_proxy", "http://q"), ("ALL_PROXY", "http://r")]).proxies;
        assert_eq!(all.https.as_deref(), Some("http://r"));
        assert_eq!(all.http.as_deref(), Some("http://q"));
    }
}
