//! How the errors of serving and copying end: code, exit status and hint.

use crowfly_mover::TransferError;
use crowfly_mover::objects::{Giver, ObjectError};
use crowfly_mover::service::{BadLocation, BadName, ServiceError, TlsError};
use crowfly_route::cause::sentence;

use super::sources::system_hint;
use super::{Exit, Failure, errno};

impl From<BadLocation> for Failure {
    fn from(error: BadLocation) -> Self {
        Self::new("bad-location", Exit::Usage, error.to_string())
            .hint("crowfly://HOST:PORT/NAME[/PATH], with the name that `crowfly serve` was given")
    }
}

impl From<BadName> for Failure {
    fn from(error: BadName) -> Self {
        Self::new("bad-name", Exit::Usage, error.to_string())
            .hint("NAME=PATH gives it another name")
    }
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Self {
        let (exit, hint) = match &error {
            TlsError::File { .. } | TlsError::Identity(_) => (
                Exit::BadData,
                Some("the three files are PEM: certificate chain, key, authority"),
            ),
            TlsError::NotTrusted { .. } => (
                Exit::NoInput,
                Some(
                    "its certificate has to be valid now, for this host, and of an authority in --tls-ca",
                ),
            ),
            TlsError::NotAccepted { .. } => (
                Exit::NoInput,
                Some(
                    "this end's certificate has to be valid and of an authority that the server trusts",
                ),
            ),
            _ => (Exit::Io, None),
        };
        Self::new(error.code(), exit, sentence(&error)).maybe_hint(hint)
    }
}

/// How what a server answered ends, by its code.
fn of_answer(code: &str) -> (Exit, Option<&'static str>) {
    match code {
        "no-such-name" | "not-found" | "access-denied" | "not-a-file" | "open-failed" => {
            (Exit::NoInput, None)
        }
        "read-only" => (
            Exit::CannotCreate,
            Some("`crowfly serve --writable` exposes folders that take files"),
        ),
        "destination-occupied" => (Exit::CannotCreate, None),
        "in-the-way" => (Exit::CannotCreate, Some("remove it, or move it away")),
        "destination-is-link" => (
            Exit::CannotCreate,
            Some("remove the link, or name what it is to lead to"),
        ),
        "file-busy" | "no-space" | "file-too-large" | "does-not-fit" => (Exit::CannotCreate, None),
        "source-changed" => (Exit::BadData, Some(ANEW)),
        "data-differs" => (Exit::Broken, None),
        "route-refused" | "no-host-memory" | "too-many" | "setup-failed" => {
            (Exit::Unavailable, None)
        }
        "bad-location" | "protocol-violation" | "link-cycle" => (Exit::BadData, None),
        _ => (Exit::Io, None),
    }
}

/// What there is to look at where no key was given.
const fn about_a_key(by: Giver) -> &'static str {
    match by {
        Giver::Machine => {
            "AWS_EC2_METADATA_DISABLED=true asks as nobody where a machine has no role"
        }
        Giver::Container => {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI names who is asked for it"
        }
        Giver::WebIdentity => {
            "the role (AWS_ROLE_ARN) has to trust whoever issued the token \
             (AWS_WEB_IDENTITY_TOKEN_FILE)"
        }
        Giver::Role => {
            "the role (role_arn) has to trust the key of source_profile or credential_source"
        }
        Giver::SignIn => {
            "the profile's sso_account_id and sso_role_name have to be among those of the sign-in"
        }
        Giver::Command => {
            "run the profile's credential_process by hand: alone it has to print JSON with \
             Version 1, AccessKeyId and SecretAccessKey"
        }
    }
}

const ANEW: &str = "without --resume the copy starts anew";

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        let (exit, hint) = match &error {
            ObjectError::Url { .. } => (Exit::Usage, None),
            ObjectError::Endpoint { .. } => (
                Exit::Usage,
                Some("it is what AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL says"),
            ),
            ObjectError::Authorities { .. } => (
                Exit::NoInput,
                Some("AWS_CA_BUNDLE or SSL_CERT_FILE names it; it is PEM"),
            ),
            ObjectError::Proxy { .. } => (
                Exit::Usage,
                Some("it is what HTTPS_PROXY, http_proxy or ALL_PROXY says"),
            ),
            ObjectError::ProxyRefused { .. } => (
                Exit::NoInput,
                Some("NO_PROXY names hosts that are asked without a proxy"),
            ),
            ObjectError::KeyRefused { by, .. } => (Exit::NoInput, Some(about_a_key(*by))),
            ObjectError::TokenFile { .. } => (
                Exit::NoInput,
                Some("AWS_WEB_IDENTITY_TOKEN_FILE, the profile or the container names it"),
            ),
            ObjectError::SignedOut { .. } => (
                Exit::NoInput,
                Some("`aws sso login`, with --profile or --sso-session, signs in again"),
            ),
            ObjectError::NotFound { .. } => (Exit::NoInput, None),
            ObjectError::NoBucket { .. } => (
                Exit::NoInput,
                Some("AWS_ENDPOINT_URL says which store is asked; buckets are not made"),
            ),
            ObjectError::Denied { .. } => (
                Exit::NoInput,
                Some(
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, say who asks; AWS_REGION where",
                ),
            ),
            ObjectError::WrongRegion { .. } => {
                (Exit::NoInput, Some("AWS_REGION says where to look"))
            }
            ObjectError::ClockSkew { .. } => (
                Exit::Unavailable,
                Some("stores refuse signatures that are 15 minutes off: set the clock, by NTP"),
            ),
            ObjectError::Exists { .. } => (
                Exit::CannotCreate,
                Some("without --no-clobber it is replaced"),
            ),
            ObjectError::TooLarge { .. } => (Exit::CannotCreate, None),
            ObjectError::Changed { .. } => (Exit::BadData, Some("copy it again")),
            ObjectError::Name { .. } | ObjectError::NoKey { .. } => (
                Exit::BadData,
                Some("copy the others one by one, or rename it"),
            ),
            ObjectError::Differs { .. } => (Exit::Broken, Some("copy it again")),
            ObjectError::UploadGone { .. } => (Exit::Io, Some("copy it again")),
            ObjectError::CopiesNothing { .. } => (
                Exit::Unavailable,
                Some("--policy socket brings the bytes through this machine"),
            ),
            ObjectError::Busy { .. } => (
                Exit::Io,
                Some("with --resume, the same command goes on where this one ended"),
            ),
            _ => (Exit::Io, None),
        };
        Self::new(error.code(), exit, sentence(&error)).maybe_hint(hint)
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        use ServiceError as E;
        let error = match error {
            E::Fabric(error) => return error.into(),
            E::Storage(error) => return storage(error),
            E::Tls(error) => return error.into(),
            E::Location(error) => return error.into(),
            E::Object(error) => return error.into(),
            other => other,
        };
        let (exit, hint): (Exit, Option<String>) = match &error {
            E::Remote { code, .. } => {
                let (exit, hint) = of_answer(code);
                (exit, hint.map(str::to_owned))
            }
            E::File { source, .. } => match error.is_of_the_source() {
                true => (errno::reading(source), None),
                false => (errno::creating(source), None),
            },
            E::Unauthenticated { .. } => (
                Exit::Usage,
                Some(
                    "give --key-file, or --tls-cert, --tls-key and --tls-ca; or listen on loopback"
                        .into(),
                ),
            ),
            E::NameTaken { .. } => (
                Exit::Usage,
                Some("give one of them another name: NAME=PATH".into()),
            ),
            E::NotCopied { .. } => (Exit::Usage, None),
            E::Memory(_) | E::Listen { .. } | E::Setup { .. } => (Exit::Unavailable, None),
            E::Message { .. } | E::Protocol { .. } => (Exit::BadData, None),
            E::Lost { .. } => (
                Exit::Io,
                Some("with --resume, the same command goes on where this one ended".into()),
            ),
            other => {
                let (exit, hint) = of_answer(other.code());
                (exit, hint.map(str::to_owned))
            }
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        let failure = failure.maybe_hint(hint.as_deref().or_else(|| system_hint(&error)));
        failure.with_obstacles(error.obstacles().to_vec())
    }
}

/// An error of storage, for which `load`'s options are no remedy.
fn storage(error: TransferError) -> Failure {
    match error {
        TransferError::Changed { .. } | TransferError::Shrank { .. } => {
            Failure::from(error).hint("copy it again once nobody writes to it any more")
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_same_answer_of_a_folder_of_the_source_and_of_a_destination_ends_differently() {
        let failed = |what| {
            Failure::from(ServiceError::File {
                what,
                path: "f/inner".into(),
                source: io::ErrorKind::PermissionDenied.into(),
            })
            .exit()
        };
        assert_eq!(failed("list"), Exit::NoInput);
        assert_eq!(failed("make the folder"), Exit::CannotCreate);
    }
}
