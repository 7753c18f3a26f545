//! The files in which tools share the settings of stores, `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;

use crowfly_mover::objects::Credentials;

/// Settings that get a key in a way of their own that is not gone here.
const BEYOND: [&str; 2] = ["login_session", "sso_session"];

type Section = BTreeMap<String, String>;

/// Both files. The first names a profile `[NAME]`, the second `[profile NAME]`.
#[derive(Debug, Default)]
pub struct Files {
    credentials: BTreeMap<String, Section>,
    config: BTreeMap<String, Section>,
}

/// A role that is taken on with a token in a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub role: String,
    /// The file.
    pub token_file: String,
    /// What the session is called, if the profile says so.
    pub session: Option<String>,
}

/// A role that is taken on with a key.
#[derive(Debug, PartialEq, Eq)]
pub struct Assumed {
    /// Its name.
    pub role: String,
    /// What the session is called, if the profile says so.
    pub session: Option<String>,
    /// The word by which the role's owner knows who may take it on.
    pub external_id: Option<String>,
    /// For how long, in seconds, as it is written.
    pub seconds: Option<String>,
    /// Whose key it is taken on with; nobody's when the profile does not say.
    pub source: Option<Source>,
}

/// Whose key a role is taken on with.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// That of another profile, or of this one.
    Profile(String),
    /// What the variables, the container or the machine have, by its word.
    Surroundings(String),
}

/// A sign-in to an organisation.
#[derive(Debug, PartialEq, Eq)]
pub struct SignedIn {
    /// What it is called.
    pub name: String,
    /// Where the organisation is.
    pub region: String,
    /// As what a key is wanted.
    pub account: String,
    /// The role.
    pub role: String,
}

/// What both say of one profile.
#[derive(Debug, Default)]
pub struct Profile {
    settings: Section,
    /// What is said of the sign-in that it names.
    sign_in: Section,
    /// What is set for one service.
    services: Section,
}

impl Files {
    /// Reads the texts of both.
    pub fn of(credentials: &str, config: &str) -> Self {
        Self {
            credentials: sections(credentials),
            config: sections(config),
        }
    }

    /// What is said of a profile; `None` when neither names it.
    pub fn profile(&self, name: &str) -> Option<Profile> {
        let long = self.config.get(&format!("profile {name}"));
        let short = self.config.get(name).filter(|_| name == "default");
        let config = long.or(short);
        let credentials = self.credentials.get(name);
        if config.is_none() && credentials.is_none() {
            return None;
        }
        let mut settings = config.cloned().unwrap_or_default();
        settings.extend(credentials.cloned().unwrap_or_default());
        let services = settings
            .get("services")
            .map(|name| format!("services {name}"));
        let services = services.and_then(|name| self.config.get(&name));
        let sign_in = settings
            .get("sso_session")
            .map(|name| format!("sso-session {name}"));
        let sign_in = sign_in.and_then(|name| self.config.get(&name));
        Some(Profile {
            settings,
            sign_in: sign_in.cloned().unwrap_or_default(),
            services: services.cloned().unwrap_or_default(),
        })
    }
}

impl Profile {
    /// A setting.
    pub fn get(&self, name: &str) -> Option<String> {
        let value = self.settings.get(name);
        value.filter(|value| !value.is_empty()).cloned()
    }

    /// Where the store is.
    pub fn endpoint(&self) -> Option<String> {
        let of_store = self.services.get("s3.endpoint_url").cloned();
        of_store.or_else(|| self.get("endpoint_url"))
    }

    /// The key that is written down, if one is.
    pub fn credentials(&self) -> Option<Credentials> {
        Some(Credentials {
            access_key: self.get("aws_access_key_id")?,
            secret_key: self.get("aws_secret_access_key")?,
            session_token: self.get("aws_session_token"),
            expires: None,
        })
    }

    /// The role that it is, by a token in a file.
    pub fn identity(&self) -> Option<Identity> {
        Some(Identity {
            role: self.get("role_arn")?,
            token_file: self.get("web_identity_token_file")?,
            session: self.get("role_session_name"),
        })
    }

    /// The role that it is, by a key.
    pub fn assumed(&self) -> Option<Assumed> {
        let profile = self.get("source_profile").map(Source::Profile);
        let surroundings = || self.get("credential_source").map(Source::Surroundings);
        Some(Assumed {
            role: self.get("role_arn")?,
            session: self.get("role_session_name"),
            external_id: self.get("external_id"),
            seconds: self.get("duration_seconds"),
            source: profile.or_else(surroundings),
        })
    }

    /// Whether it is a role: a key that stands beside that is not its own, but may be there to take it on with.
    pub fn is_role(&self) -> bool {
        self.settings.contains_key("role_arn")
    }

    /// The command that prints its key.
    pub fn process(&self) -> Option<String> {
        self.get("credential_process")
    }

    /// The sign-in whose key it has.
    pub fn signed_in(&self) -> Option<SignedIn> {
        let of = |name: &str| {
            let own = self.sign_in.get(name).cloned();
            own.or_else(|| self.get(name))
        };
        // The older form has no session, and is kept under the URL where it began.
        let name = self
            .get("sso_session")
            .or_else(|| self.get("sso_start_url"));
        Some(SignedIn {
            name: name?,
            region: of("sso_region")?,
            account: self.get("sso_account_id")?,
            role: self.get("sso_role_name")?,
        })
    }

    /// A setting by which other tools would get a key.
    pub fn beyond(&self) -> Option<&'static str> {
        let mut all = BEYOND.iter().copied();
        all.find(|name| self.settings.contains_key(*name))
    }
}

/// The settings of each section. What is indented below a setting without a value belongs to it, as `a.b`.
fn sections(text: &str) -> BTreeMap<String, Section> {
    let mut all: BTreeMap<String, Section> = BTreeMap::new();
    let (mut section, mut above) = (None, None);
    for line in text.lines() {
        let words = line.trim();
        if words.is_empty() || words.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = words
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            let words: Vec<&str> = name.split_whitespace().collect();
            let name = words.join(" ");
            all.entry(name.clone()).or_default();
            (section, above) = (Some(name), None);
            continue;
        }
        let Some((name, value)) = words.split_once('=') else {
            continue;
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        let nested = line.starts_with([' ', '\t']);
        let name = match above.as_ref().filter(|_| nested) {
            Some(above) => format!("{above}.{name}"),
            None => {
                above = value.is_empty().then(|| name.clone());
                name
            }
        };
        if let Some(section) = section.as_ref().and_then(|name| all.get_mut(name)) {
            section.insert(name, value);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_hold_settings_and_what_is_indented_below_one() {
        let all =
            sections("x = lost\n# no\n[ a  b ]\nK=v = w\nn =\n  x = 1\n\ty=2\nz = 3\n[empty]\n");
        let found: Vec<_> = all["a b"]
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("k", "v = w"),
                ("n", ""),
                ("n.x", "1"),
                ("n.y", "2"),
                ("z", "3")
            ]
        );
        assert!(all["empty"].is_empty());
    }

    #[test]
    fn a_profile_of_the_second_file_needs_its_word_save_the_default() {
        let files = Files::of(
            "",
            "[job]\nregion=a\n[default]\nregion=b\n[profile job2]\nregion=c",
        );
        assert!(files.profile("job").is_none());
        let region = |name: &str| {
            files
                .profile(name)
                .and_then(|profile| profile.get("region"))
        };
        assert_eq!(region("default").as_deref(), Some("b"));
        assert_eq!(region("job2").as_deref(), Some("c"));
    }

    #[test]
    fn what_makes_no_sense_says_nothing() {
        for text in [
            "[",
            "]",
            "[]",
            "=",
            " = x",
            "[a",
            "[default]\n=\n =",
            "\t[default]\n\tx",
        ] {
            let files = Files::of(text, text);
            let profile = files.profile("default").unwrap_or_default();
            assert!(
                profile.credentials().is_none() && profile.endpoint().is_none(),
                "{text:?}"
            );
        }
    }
}
