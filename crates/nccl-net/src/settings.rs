//! What the environment says: the variables `CROWFLY_NET_…`. One that is unknown or makes no sense is an
//! error at `init`: a mistyped `CROWFLY_NET_POLICY` must not become a silent detour.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crowfly_mover::fabric::{NicFilter, SharedKey};
use crowfly_route::policy::Policy;

use crate::error::NetError;

/// What all variables begin with.
const PREFIX: &str = "CROWFLY_NET_";
/// How long a message may take once its receiver is ready, and a connection until the other end
/// knows of it, when nobody says.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Silence after which a peer counts as gone when nobody says: longer than a switch takes to find
/// another way, and than NCCL's own InfiniBand transport retries.
const SILENCE: Duration = Duration::from_secs(20);
/// The longest time that can be asked for.
const MAX_SECONDS: f64 = 86_400.0;
/// The longest key file: 64 digits and some white space.
const MAX_KEY_FILE: u64 = 1024;
/// The key when none is given. It keeps nobody out, as NCCL's own transports keep nobody out;
/// each connection is known by the random ticket in its handle all the same.
const OPEN_KEY: &str = "crowfly nccl-net without a key";

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `CROWFLY_NET_NICS`.
    pub nics: NicFilter,
    /// `CROWFLY_NET_POLICY`.
    pub policy: Policy,
    /// `CROWFLY_NET_RECEIPTS`.
    pub receipts: Option<PathBuf>,
    /// `CROWFLY_NET_ADDRESS`.
    pub address: Option<IpAddr>,
    /// `CROWFLY_NET_KEY_FILE`.
    pub key: SharedKey,
    /// `CROWFLY_NET_TIMEOUT`.
    pub timeout: Duration,
    /// `CROWFLY_NET_SILENCE`.
    pub silence: Duration,
    /// `CROWFLY_NET_MERGE`.
    pub merge: bool,
    /// `CROWFLY_NET_LOCAL`.
    pub local: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nics: NicFilter::default(),
            policy: Policy::Prefer,
            receipts: None,
            address: None,
            key: SharedKey::derive(OPEN_KEY),
            timeout: TIMEOUT,
            silence: SILENCE,
            merge: false,
            local: true,
        }
    }
}

impl Settings {
    /// What the process's own variables say.
    ///
    /// # Errors
    /// As for [`Settings::read`].
    pub fn from_environment() -> Result<Self, NetError> {
        Self::read(std::env::vars_os().filter_map(|(name, value)| {
            let value = value.to_string_lossy().into_owned();
            Some((name.into_string().ok()?, value))
        }))
    }

    /// What these variables say; those of other programs are passed over.
    ///
    /// # Errors
    /// [`NetError::Variable`] for the first that makes no sense.
    pub fn read(variables: impl Iterator<Item = (String, String)>) -> Result<Self, NetError> {
        let mut settings = Self::default();
        for (name, value) in variables {
            let Some(short) = name.strip_prefix(PREFIX) else {
                continue;
            };
            settings
                .take(short, value.trim())
                .map_err(|why| NetError::Variable {
                    variable: name.clone(),
                    value: value.clone(),
                    why,
                })?;
        }
        Ok(settings)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "NICS" => self.nics = value.parse().map_err(said)?,
            "POLICY" => {
                self.policy = match value.parse().map_err(said)? {
                    Policy::Staged => {
                        return Err(
                            "this plugin stages nothing; choose require, prefer or socket".into(),
                        );
                    }
                    policy => policy,
                }
            }
            "RECEIPTS" if value.is_empty() => return Err("it names no file".into()),
            "RECEIPTS" => self.receipts = Some(named(value)?),
            "ADDRESS" => self.address = Some(value.parse().map_err(said)?),
            "KEY_FILE" => self.key = key(value)?,
            "TIMEOUT" => self.timeout = seconds(value)?,
            "SILENCE" => self.silence = seconds(value)?,
            "MERGE" => self.merge = switch(value)?,
            "LOCAL" => self.local = switch(value)?,
            _ => {
                return Err(
                    "there is no such variable; there are NICS, POLICY, RECEIPTS, ADDRESS, KEY_FILE, \
                     TIMEOUT, SILENCE, MERGE and LOCAL"
                        .into(),
                );
            }
        }
        Ok(())
    }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("write 1 or 0".into()),
    }
}

fn seconds(value: &str) -> Result<Duration, String> {
    let wrong = || format!("write seconds, more than 0 and {MAX_SECONDS} at most");
    let seconds: f64 = value.parse().map_err(|_| wrong())?;
    if seconds > 0.0 && seconds <= MAX_SECONDS {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(wrong())
}

/// The file of receipts: `%p` stands for the process, `%h` for the host, as in `NCCL_DEBUG_FILE`.
fn named(value: &str) -> Result<PathBuf, String> {
    let mut path = String::new();
    let mut rest = value.chars();
    while let Some(c) = rest.next() {
        match (c, c == '%') {
            (_, true) => match rest.next() {
                Some('p') => path += &std::process::id().to_string(),
                Some('h') => {
                    path += &rustix::system::uname().nodename().to_string_lossy();
                }
                Some('%') => path.push('%'),
                _ => return Err("after % comes p (process), h (host) or another %".into()),
            },
            (c, false) => path.push(c),
        }
    }
    Ok(path.into())
}

fn key(path: &str) -> Result<SharedKey, String> {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    const OTHERS: u32 = 0o077;
    let file = std::fs::File::open(path).map_err(said)?;
    let mode = file.metadata().map_err(said)?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err("others than its owner may open the file; chmod 600 it".into());
    }
    let mut text = String::new();
    file.take(MAX_KEY_FILE)
        .read_to_string(&mut text)
        .map_err(said)?;
    text.parse().map_err(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, NetError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Settings::read(variables.iter().map(owned))
    }

    #[test]
    fn given_nothing_then_the_best_route_is_taken_and_nothing_is_written() {
        let settings = read(&[("PATH", "/bin"), ("NCCL_DEBUG", "INFO")]).expect("fine");
        assert_eq!(settings.policy, Policy::Prefer);
        assert!(settings.nics.is_empty() && settings.receipts.is_none());
        assert!(settings.local && !settings.merge);
    }

    #[test]
    fn each_variable_says_what_it_says() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("key");
        std::fs::write(&file, format!("{}\n", "5a".repeat(32))).expect("written");
        let mode = |mode| {
            use std::os::unix::fs::PermissionsExt;
            let allowed = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, allowed).expect("changed");
        };
        mode(0o640);
        let keyed = ("CROWFLY_NET_KEY_FILE", file.to_str().expect("text"));
        let error = read(&[keyed]).expect_err("others may read it");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        mode(0o600);
        let settings = read(&[
            ("CROWFLY_NET_NICS", "mlx5_0,eth0"),
            ("CROWFLY_NET_POLICY", "require"),
            ("CROWFLY_NET_RECEIPTS", "/tmp/100%%-%p.json"),
            ("CROWFLY_NET_ADDRESS", "10.1.0.1"),
            keyed,
            ("CROWFLY_NET_TIMEOUT", "2.5"),
            ("CROWFLY_NET_SILENCE", "7"),
            ("CROWFLY_NET_MERGE", "1"),
            ("CROWFLY_NET_LOCAL", "0"),
        ])
        .expect("fine");
        assert_eq!(settings.nics.to_string(), "mlx5_0,eth0");
        assert_eq!(settings.policy, Policy::Require);
        let receipts = format!("/tmp/100%-{}.json", std::process::id());
        assert_eq!(settings.receipts, Some(receipts.into()));
        assert_eq!(settings.address, "10.1.0.1".parse().ok());
        assert_eq!(settings.key.to_hex(), "5a".repeat(32));
        assert_eq!(settings.timeout, Duration::from_millis(2500));
        assert_eq!(settings.silence, Duration::from_secs(7));
        assert!(settings.merge && !settings.local);
    }

    #[test]
    fn what_makes_no_sense_is_an_error_that_names_the_variable_and_no_detour() {
        for (name, value) in [
            ("CROWFLY_NET_POLICIES", "require"),
            ("CROWFLY_NET_POLICY", "required"),
            ("CROWFLY_NET_POLICY", "staged"),
            ("CROWFLY_NET_NICS", "mlx5_0,,eth0"),
            ("CROWFLY_NET_RECEIPTS", ""),
            ("CROWFLY_NET_RECEIPTS", "/tmp/%q"),
            ("CROWFLY_NET_ADDRESS", "rank0"),
            ("CROWFLY_NET_KEY_FILE", "/nowhere/at/all"),
            ("CROWFLY_NET_TIMEOUT", "-1"),
            ("CROWFLY_NET_TIMEOUT", "nan"),
            ("CROWFLY_NET_SILENCE", "1e9"),
            ("CROWFLY_NET_MERGE", "yes"),
            ("CROWFLY_NET_LOCAL", ""),
        ] {
            let error = read(&[(name, value)]).expect_err(name);
            assert_eq!(error.code(), "bad-variable");
            assert!(
                error.to_string().starts_with(&format!("{name}={value}: ")),
                "{error}"
            );
        }
    }
}
