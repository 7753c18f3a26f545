//! Where objects are and as whom they are read: what the variables say that every client of S3 knows.

use crowfly_mover::objects::{Credentials, StoreSettings};

/// The variables, the first that is set of each line.
const ENDPOINT: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const REGION: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
const ACCESS_KEY: [&str; 1] = ["AWS_ACCESS_KEY_ID"];
const SECRET_KEY: [&str; 1] = ["AWS_SECRET_ACCESS_KEY"];
const TOKEN: [&str; 1] = ["AWS_SESSION_TOKEN"];

/// What the environment says.
pub fn from_environment() -> StoreSettings {
    settings(|name| std::env::var(name).ok())
}

fn settings(variable: impl Fn(&str) -> Option<String>) -> StoreSettings {
    let first = |names: &[&str]| {
        let mut set = names.iter().filter_map(|name| variable(name));
        set.find(|value| !value.is_empty())
    };
    let keys = first(&ACCESS_KEY).zip(first(&SECRET_KEY));
    StoreSettings {
        endpoint: first(&ENDPOINT),
        region: first(&REGION),
        credentials: keys.map(|(access_key, secret_key)| Credentials {
            access_key,
            secret_key,
            session_token: first(&TOKEN),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_special_variable_counts_and_half_a_key_is_none() {
        let read = |set: &[(&str, &str)]| {
            let find = |name: &str| {
                let mut all = set.iter().filter(|(known, _)| *known == name);
                all.next().map(|(_, value)| (*value).to_owned())
            };
            settings(find)
        };
        let both = [
            ("AWS_ENDPOINT_URL", "http://a"),
            ("AWS_ENDPOINT_URL_S3", "http://b"),
        ];
        assert_eq!(read(&both).endpoint.as_deref(), Some("http://b"));
        let region = [("AWS_REGION", ""), ("AWS_DEFAULT_REGION", "r")];
        assert_eq!(read(&region).region.as_deref(), Some("r"));
        assert!(read(&[("AWS_ACCESS_KEY_ID", "k")]).credentials.is_none());
        let keys = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")];
        assert_eq!(read(&keys).credentials.expect("a key").access_key, "k");
    }
}
