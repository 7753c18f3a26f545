//! Who gives the key of a profile: a role, a sign-in or a command.

use std::path::PathBuf;

use crowfly_mover::objects::{
    AssumedRole, Credentials, Issuer, Process, SignIn, StoreSettings, With,
};

use super::profile::{Assumed, Files, Profile, Source};
use super::{ACCESS_KEY, OWN_SESSION, SECRET_KEY, Surroundings, TOKEN, TOKENS};
use crate::failure::{Exit, Failure};

const SIGN_INS: [&str; 1] = ["AWS_ENDPOINT_URL_SSO"];
/// Roles that are taken on one with the key of the next.
const MAX_ROLES: usize = 8;

/// The files, and what they are looked at for.
pub(super) struct Own<'o> {
    pub surroundings: &'o Surroundings<'o>,
    pub files: &'o Files,
    pub settings: &'o StoreSettings,
}

fn not_read(what: String) -> Failure {
    Failure::new("profile-not-read", Exit::Unavailable, what)
        .hint("`aws configure export-credentials --format env` prints variables that are read")
}

impl Own<'_> {
    /// Who gives the key of a profile; `None` when it says nothing of that.
    pub(super) fn of_profile(
        &self,
        name: &str,
        profile: &Profile,
    ) -> Result<Option<Issuer>, Failure> {
        self.within(name, profile, &mut Vec::new())
    }

    /// `above` are the profiles whose roles are taken on with the key.
    fn within(
        &self,
        name: &str,
        profile: &Profile,
        above: &mut Vec<String>,
    ) -> Result<Option<Issuer>, Failure> {
        if let Some(identity) = profile.identity() {
            return Ok(Some(self.surroundings.role(identity, self.settings)));
        }
        if let Some(assumed) = profile.assumed() {
            above.push(name.to_owned());
            if let Some(setting) = profile.get("mfa_serial").map(|_| "mfa_serial") {
                return Err(not_read(format!(
                    "the role of the profile `{name}` is taken on with `{setting}`, which this build does \
                     not ask for"
                )));
            }
            return self.role(name, assumed, above).map(Some);
        }
        if let Some(signed_in) = profile.signed_in() {
            let home = self.surroundings.first(&["HOME"]).map(PathBuf::from);
            return Ok(Some(Issuer::SignIn(SignIn {
                endpoint: self.surroundings.first(&SIGN_INS),
                region: signed_in.region,
                cache: home.unwrap_or_default().join(".aws/sso/cache"),
                name: signed_in.name,
                account: signed_in.account,
                role: signed_in.role,
            })));
        }
        if let Some(line) = profile.process() {
            let process = Process::of(&line).ok_or_else(|| {
                // There may be a secret in it.
                let what = format!(
                    "credential_process of the profile `{name}` is no command: a quotation does not end"
                );
                Failure::new("bad-profiles", Exit::BadData, what)
            })?;
            return Ok(Some(Issuer::Process(process)));
        }
        match profile.beyond() {
            None => Ok(None),
            Some(setting) => Err(not_read(format!(
                "the profile gets its key by `{setting}`, which this build does not do"
            ))),
        }
    }

    fn role(
        &self,
        name: &str,
        assumed: Assumed,
        above: &mut Vec<String>,
    ) -> Result<Issuer, Failure> {
        let bad = |what: String| Failure::new("bad-profiles", Exit::BadData, what);
        let seconds = assumed.seconds.map(|text| {
            text.parse().map_err(|_| {
                bad(format!(
                    "duration_seconds of the profile `{name}` is `{text}`: no number of seconds"
                ))
            })
        });
        let with = match assumed.source {
            None => {
                return Err(bad(format!(
                    "the profile `{name}` is a role, and says not with whose key it is taken on"
                ))
                .hint("source_profile names a profile that has one, credential_source a place"));
            }
            Some(Source::Profile(source)) => self.of_source(name, &source, above)?,
            Some(Source::Surroundings(place)) => self.of_place(name, &place)?,
        };
        let (usual, region) = AssumedRole::endpoint_in(self.settings.region.as_deref());
        Ok(Issuer::Assumed(AssumedRole {
            endpoint: self.surroundings.first(&TOKENS).unwrap_or(usual),
            region,
            role: assumed.role,
            session: assumed.session.unwrap_or_else(|| OWN_SESSION.to_owned()),
            external_id: assumed.external_id,
            seconds: seconds.transpose()?,
            with,
        }))
    }

    /// The key of the profile that a role is taken on with.
    fn of_source(
        &self,
        name: &str,
        source: &str,
        above: &mut Vec<String>,
    ) -> Result<With, Failure> {
        let Some(profile) = self.files.profile(source) else {
            let what = format!("no file has the profile `{source}`, which `{name}` is a role by");
            return Err(Failure::new("no-such-profile", Exit::NoInput, what));
        };
        let again = above.iter().any(|known| known == source);
        // One that is a role itself has its own key to take it on with.
        if let Some(key) = profile
            .credentials()
            .filter(|_| again || !profile.is_role())
        {
            return Ok(With::Key(key));
        }
        if again || above.len() >= MAX_ROLES {
            let what = match again {
                true => format!("the role of the profile `{source}` is taken on with itself"),
                false => format!("more than {MAX_ROLES} roles are taken on one with another"),
            };
            return Err(Failure::new("bad-profiles", Exit::BadData, what));
        }
        match self.within(source, &profile, above)? {
            Some(issuer) => Ok(With::Issuer(Box::new(issuer))),
            None => {
                let what =
                    format!("the profile `{source}`, which `{name}` is a role by, has no key");
                Err(Failure::new("bad-profiles", Exit::BadData, what))
            }
        }
    }

    /// The key of a place that a profile names.
    fn of_place(&self, name: &str, place: &str) -> Result<With, Failure> {
        let first = |names: &[&str]| self.surroundings.first(names);
        let issuer = match place {
            "Environment" => {
                let key = first(&ACCESS_KEY).zip(first(&SECRET_KEY));
                let key = key.map(|(access_key, secret_key)| Credentials {
                    access_key,
                    secret_key,
                    session_token: first(&TOKEN),
                    expires: None,
                });
                return key.map(With::Key).ok_or_else(|| {
                    let what = format!(
                        "the profile `{name}` is a role by the key of the variables, and {} and {} are \
                         not set",
                        ACCESS_KEY[0], SECRET_KEY[0]
                    );
                    Failure::new("half-a-key", Exit::Usage, what)
                });
            }
            "EcsContainer" => self.surroundings.container()?.ok_or_else(|| {
                not_read(format!(
                    "the profile `{name}` is a role by the key of a container, and no variable says \
                     where that is"
                ))
            })?,
            "Ec2InstanceMetadata" => self.surroundings.instance(),
            _ => {
                let what = format!(
                    "credential_source of the profile `{name}` is `{place}`, and not Environment, \
                     EcsContainer or Ec2InstanceMetadata"
                );
                return Err(Failure::new("bad-profiles", Exit::BadData, what));
            }
        };
        Ok(With::Issuer(Box::new(issuer)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const CREDENTIALS: &str = "[both]\naws_access_key_id = b\naws_secret_access_key = s\n\
                               [plain]\naws_access_key_id = p\naws_secret_access_key = s\n";
    const CONFIG: &str = "[profile one]\nregion = r1\nrole_arn = arn:1\nsource_profile = plain\n\
         external_id = e\nduration_seconds = 900\nrole_session_name = me\n\
         [profile two]\nrole_arn = arn:2\nsource_profile = one\n\
         [profile both]\nrole_arn = arn:b\nsource_profile = both\n\
         [profile by-tool]\nrole_arn = arn:t\nsource_profile = tool\n\
         [profile tool]\ncredential_process = /a/tool \"its word\"\n\
         [profile odd-tool]\ncredential_process = /a/tool \"its word\n\
         [profile here]\nrole_arn = arn:h\ncredential_source = Environment\n\
         [profile machine]\nrole_arn = arn:m\ncredential_source = Ec2InstanceMetadata\n\
         [profile pod]\nrole_arn = arn:e\ncredential_source = EcsContainer\n\
         [profile elsewhere]\nrole_arn = arn:x\ncredential_source = Elsewhere\n\
         [profile alone]\nrole_arn = arn:a\n\
         [profile lost]\nrole_arn = arn:l\nsource_profile = nobody\n\
         [profile poor]\nrole_arn = arn:q\nsource_profile = empty\n[profile empty]\nregion = r\n\
         [profile ring]\nrole_arn = arn:r\nsource_profile = ring2\n\
         [profile ring2]\nrole_arn = arn:r2\nsource_profile = ring\n\
         [profile long]\nrole_arn = arn:d\nsource_profile = plain\nduration_seconds = 1h\n\
         [profile asks]\nrole_arn = arn:f\nsource_profile = plain\nmfa_serial = arn:mfa\n";

    fn read(name: &str, set: &[(&str, &str)]) -> Result<StoreSettings, Failure> {
        let variable = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            let home = (name == "HOME").then(|| "/home".to_owned());
            found.map(|(_, value)| (*value).to_owned()).or(home)
        };
        let file = |path: &Path| {
            Ok(match path.to_str() {
                Some("/home/.aws/credentials") => CREDENTIALS.to_owned(),
                Some("/home/.aws/config") => CONFIG.to_owned(),
                _ => String::new(),
            })
        };
        let surroundings = Surroundings {
            variable: &variable,
            file: &file,
        };
        surroundings.settings(Some(name))
    }

    fn role(name: &str, set: &[(&str, &str)]) -> AssumedRole {
        let settings = read(name, set).unwrap_or_else(|error| panic!("{name}: {}", error.code()));
        assert!(settings.credentials.is_none(), "{name}");
        match settings.issuer {
            Some(Issuer::Assumed(role)) => role,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn with_key(role: &AssumedRole) -> &str {
        match &role.with {
            With::Key(key) => &key.access_key,
            With::Issuer(issuer) => panic!("{issuer:?}"),
        }
    }

    #[test]
    fn a_role_is_taken_on_with_the_key_of_the_profile_that_it_names() {
        let one = role("one", &[]);
        assert_eq!(with_key(&one), "p");
        assert_eq!(one.endpoint, "https://sts.r1.amazonaws.com");
        assert_eq!((one.region.as_str(), one.role.as_str()), ("r1", "arn:1"));
        assert_eq!((one.session.as_str(), one.seconds), ("me", Some(900)));
        assert_eq!(one.external_id.as_deref(), Some("e"));
        let both = role("both", &[("AWS_ENDPOINT_URL_STS", "http://near")]);
        assert_eq!(
            (with_key(&both), both.endpoint.as_str()),
            ("b", "http://near")
        );
        assert_eq!(
            (both.session.as_str(), both.region.as_str()),
            ("crowfly", "us-east-1")
        );
        let two = role("two", &[]);
        let With::Issuer(first) = &two.with else {
            panic!("{two:?}");
        };
        assert!(
            matches!(&**first, Issuer::Assumed(role) if role.role == "arn:1"),
            "{first:?}"
        );
    }

    #[test]
    fn a_role_is_taken_on_with_what_a_command_a_container_the_machine_or_the_variables_have() {
        let by = |name: &str, set: &[(&str, &str)]| match role(name, set).with {
            With::Key(key) => key.access_key,
            With::Issuer(issuer) => format!("{issuer:?}")
                .split('(')
                .next()
                .unwrap_or("")
                .to_owned(),
        };
        assert_eq!(by("by-tool", &[]), "Process");
        assert_eq!(by("machine", &[]), "Instance");
        assert_eq!(
            by("pod", &[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/k")]),
            "Container"
        );
        let keys = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")];
        assert_eq!(by("here", &keys), "k");
        let tool = read("tool", &[]).expect("read").issuer;
        assert_eq!(tool, Process::of("/a/tool 'its word'").map(Issuer::Process));
    }

    #[test]
    fn a_role_that_cannot_be_taken_on_is_refused_by_the_name_of_its_profile() {
        for (name, code) in [
            ("elsewhere", "bad-profiles"),
            ("alone", "bad-profiles"),
            ("poor", "bad-profiles"),
            ("ring", "bad-profiles"),
            ("long", "bad-profiles"),
            ("odd-tool", "bad-profiles"),
            ("lost", "no-such-profile"),
            ("here", "half-a-key"),
            ("pod", "profile-not-read"),
            ("asks", "profile-not-read"),
        ] {
            let error = read(name, &[]).map(drop).expect_err(name);
            assert_eq!(error.code(), code, "{name}");
        }
    }
}
