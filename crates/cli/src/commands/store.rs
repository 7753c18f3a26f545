//! Where objects are and as whom they are asked for: what the variables and files say that every client of
//! S3 knows.

use std::path::{Path, PathBuf};

use crowfly_mover::objects::{Credentials, Instance, StoreSettings};

use crate::failure::{Exit, Failure};
use crate::input;
use crate::path::shown;

mod profile;

use profile::Files;

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
/// Only with `false` in it is the service that cloud machines have asked for a key.
const NO_INSTANCE: [&str; 1] = ["AWS_EC2_METADATA_DISABLED"];
const INSTANCE: [&str; 1] = ["AWS_EC2_METADATA_SERVICE_ENDPOINT"];

/// The longest of the two files that is read, in bytes.
const MAX_FILE: usize = 1 << 20;

/// What the environment and the files in it say.
pub fn from_environment() -> Result<StoreSettings, Failure> {
    let surroundings = Surroundings {
        variable: &|name| std::env::var(name).ok(),
        file: &text_of,
    };
    surroundings.settings()
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

    fn settings(&self) -> Result<StoreSettings, Failure> {
        let first = |names: &[&str]| self.first(names);
        let files = self.files()?;
        let wanted = first(&PROFILE);
        let profile = files.profile(wanted.as_deref().unwrap_or("default"));
        if let (None, Some(wanted)) = (&profile, &wanted) {
            let what = format!("AWS_PROFILE={wanted}: no file has such a profile");
            return Err(Failure::new("no-such-profile", Exit::NoInput, what)
                .hint("~/.aws/credentials and ~/.aws/config are read, or what AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name"));
        }
        let profile = profile.unwrap_or_default();
        let keys = first(&ACCESS_KEY).zip(first(&SECRET_KEY));
        let credentials = match keys {
            Some((access_key, secret_key)) => Some(Credentials {
                access_key,
                secret_key,
                session_token: first(&TOKEN),
            }),
            None => match profile.credentials() {
                Some(credentials) => Some(credentials),
                None => self.of_instance(&profile)?,
            },
        };
        let authorities = first(&AUTHORITIES)
            .or_else(|| profile.get("ca_bundle"))
            .or_else(|| first(&ALL_AUTHORITIES));
        Ok(StoreSettings {
            endpoint: first(&ENDPOINT).or_else(|| profile.endpoint()),
            region: first(&REGION).or_else(|| profile.get("region")),
            credentials,
            authorities: authorities.map(PathBuf::from),
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

    /// The key of the machine itself, where that is asked for.
    fn of_instance(&self, profile: &profile::Profile) -> Result<Option<Credentials>, Failure> {
        let wanted = self.first(&NO_INSTANCE);
        if wanted.is_some_and(|disabled| disabled.eq_ignore_ascii_case("false")) {
            let endpoint = self.first(&INSTANCE);
            return Ok(Some(Instance::at(endpoint.as_deref()).credentials()?));
        }
        match profile.beyond() {
            None => Ok(None),
            Some(setting) => Err(Failure::new(
                "profile-not-read",
                Exit::Unavailable,
                format!("the profile gets its key by `{setting}`, which this build does not do"),
            )
            .hint(
                "`aws configure export-credentials --format env` prints variables that are read",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "[default]\naws_access_key_id = d\naws_secret_access_key = s\n\
                               [job]\naws_access_key_id=j\naws_secret_access_key=t\naws_session_token=u\n";
    const CONFIG: &str = "[default]\nregion = r1\n[profile job]\nregion = r2\nservices = near\n\
                          ca_bundle = /ca.pem\n[services near]\ns3 =\n  endpoint_url = http://near\n\
                          [profile person]\nsso_session = x\n";

    fn read(set: &[(&str, &str)]) -> Result<StoreSettings, Failure> {
        let surroundings = Surroundings {
            variable: &|name| {
                let mut all = set.iter().filter(|(known, _)| *known == name);
                all.next().map(|(_, value)| (*value).to_owned())
            },
            file: &|path| match path.to_str() {
                Some("/home/.aws/credentials") => Ok(CREDENTIALS.to_owned()),
                Some("/home/.aws/config") => Ok(CONFIG.to_owned()),
                Some("/denied") => Err(Failure::new("input-denied", Exit::NoInput, "denied")),
                _ => Ok(String::new()),
            },
        };
        surroundings.settings()
    }

    fn settings(set: &[(&str, &str)]) -> StoreSettings {
        read(set).expect("settings")
    }

    #[test]
    fn the_more_special_variable_counts_and_half_a_key_is_none() {
        let both = [
            ("AWS_ENDPOINT_URL", "http://a"),
            ("AWS_ENDPOINT_URL_S3", "http://b"),
        ];
        assert_eq!(settings(&both).endpoint.as_deref(), Some("http://b"));
        let region = [("AWS_REGION", ""), ("AWS_DEFAULT_REGION", "r")];
        assert_eq!(settings(&region).region.as_deref(), Some("r"));
        assert!(
            settings(&[("AWS_ACCESS_KEY_ID", "k")])
                .credentials
                .is_none()
        );
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
        assert_eq!(code(&[home, ("AWS_PROFILE", "person")]), "profile-not-read");
        assert_eq!(code(&[("AWS_CONFIG_FILE", "/denied")]), "input-denied");
        let nobody = [
            ("AWS_EC2_METADATA_DISABLED", "false"),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1"),
        ];
        assert_eq!(code(&nobody), "store-unreachable");
        assert!(
            settings(&nobody[1..]).credentials.is_none(),
            "not unless asked for"
        );
    }
}
