//! Why a store did not do what was asked.

use std::io;

use crowfly_route::units::significant;

/// By which way a key was to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Giver {
    /// The metadata service of a machine.
    Machine,
    /// The service beside a container.
    Container,
    /// The security token service, for a token in a file.
    WebIdentity,
    /// The security token service, for another key.
    Role,
    /// An organisation, for a sign-in.
    SignIn,
    /// A command.
    Command,
}

/// Why a store did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The text names no object.
    #[error("`{text}` names no object: {why}")]
    Url {
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The endpoint is none.
    #[error("`{endpoint}` is no endpoint of a store: {why}")]
    Endpoint {
        /// What was written.
        endpoint: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The authorities that are to be trusted cannot be read.
    #[error("cannot read the authorities to trust from `{path}`: {why}")]
    Authorities {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The proxy on the way is none.
    #[error("`{proxy}` is no proxy: {why}")]
    Proxy {
        /// What was written, without a password.
        proxy: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The proxy on the way does not let this process through.
    #[error("{store} cannot be asked for {url}: the proxy answered {what}")]
    ProxyRefused {
        /// Where the store is, and by which proxy.
        store: String,
        /// The object.
        url: String,
        /// What it answered.
        what: String,
    },
    /// Whoever gives keys gave none.
    #[error("{from} gave no key: {what}")]
    KeyRefused {
        /// Who was asked.
        from: String,
        /// Which way that is.
        by: Giver,
        /// What it answered.
        what: String,
    },
    /// The token that a key is asked for with cannot be read.
    #[error("cannot read the token in `{path}`: {why}")]
    TokenFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// What a sign-in left does not count.
    #[error("the sign-in `{name}` is over (`{file}`): {why}")]
    SignedOut {
        /// What it is called.
        name: String,
        /// Where it is kept.
        file: String,
        /// Why it does not count.
        why: &'static str,
    },
    /// The store has no such object, or none below a prefix.
    #[error("there is no {url}")]
    NotFound {
        /// The object.
        url: String,
    },
    /// The store has no such bucket.
    #[error("{store} has no bucket `{bucket}`")]
    NoBucket {
        /// Where the store is.
        store: String,
        /// The bucket.
        bucket: String,
    },
    /// The store does not let this process do it.
    #[error(
        "{store} does not let {url} be {doing} (status {status}{}; {who})",
        said(code)
    )]
    Denied {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
        /// `read`, `written` or `listed`.
        doing: &'static str,
        /// HTTP's number.
        status: u16,
        /// The store's word for it, where it has one.
        code: String,
        /// As whom it was asked.
        who: &'static str,
    },
    /// The bucket is in another region than the one that was asked in.
    #[error(
        "the bucket `{bucket}` is not in the region {asked}{}",
        is.as_ref().map(|is| format!(" but in {is}")).unwrap_or_default()
    )]
    WrongRegion {
        /// The bucket.
        bucket: String,
        /// Where it was looked for.
        asked: String,
        /// Where it is, if the store says.
        is: Option<String>,
    },
    /// The clock of this machine and that of the store differ too much for a signature to count.
    #[error("the clock of this machine is {} s {} that of {store}", significant(seconds.abs() as f64), match *seconds < 0 {
        true => "behind",
        false => "ahead of",
    })]
    ClockSkew {
        /// Where the store is.
        store: String,
        /// How far this machine's is ahead, in seconds.
        seconds: i64,
    },
    /// Something is there already, and was not to be replaced.
    #[error("there is {url} already")]
    Exists {
        /// The object.
        url: String,
    },
    /// It is not the version any more that was opened.
    #[error("{url} changed while it was read")]
    Changed {
        /// The object.
        url: String,
    },
    /// What arrived at the store is not what left.
    #[error("{url}: what arrived at {store} has another checksum than what left")]
    Differs {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
    },
    /// It is longer than an object may be.
    #[error("{url} would have {bytes} bytes, and an object has {most} at most")]
    TooLarge {
        /// The object.
        url: String,
        /// Its length.
        bytes: u64,
        /// The longest that a store takes.
        most: u64,
    },
    /// The name of an object cannot be that of a file, or two of them cannot be so at once.
    #[error("{url} cannot be a file: {why}")]
    Name {
        /// The object.
        url: String,
        /// Why not.
        why: &'static str,
    },
    /// The name of a file cannot be that of an object.
    #[error("`{path}` cannot be an object below {url}: {why}")]
    NoKey {
        /// The file.
        path: String,
        /// Below what.
        url: String,
        /// Why not.
        why: &'static str,
    },
    /// An upload ended before all of it was there: someone else removed it.
    #[error("{store} does not know the upload of {url} any more")]
    UploadGone {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
    },
    /// The store does not copy by itself.
    #[error("{store} copies no objects by itself, {url} neither")]
    CopiesNothing {
        /// Where the store is.
        store: String,
        /// The object that was to be.
        url: String,
    },
    /// The store is busy or unwell, and stayed so.
    #[error("{store} is too busy for {url} (status {status}{})", said(code))]
    Busy {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
        /// HTTP's number.
        status: u16,
        /// The store's word for it, where it has one.
        code: String,
    },
    /// The store answered something else than was asked for.
    #[error("{store} answered {url} with {what}")]
    Odd {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
        /// What it answered.
        what: String,
    },
    /// The store cannot be reached, or the connection broke.
    #[error("the connection to {store} for {url} failed: {source}")]
    Io {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
        /// How it failed.
        source: io::Error,
    },
}

fn said(code: &str) -> String {
    match code.is_empty() {
        true => String::new(),
        false => format!(" {code}"),
    }
}

impl ObjectError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Url { .. } => "bad-object-url",
            Self::Endpoint { .. } => "bad-endpoint",
            Self::Authorities { .. } => "bad-authorities",
            Self::Proxy { .. } => "bad-proxy",
            Self::ProxyRefused { .. } => "proxy-refused",
            Self::KeyRefused { .. } => "key-refused",
            Self::TokenFile { .. } => "token-file",
            Self::SignedOut { .. } => "signed-out",
            Self::NotFound { .. } => "object-not-found",
            Self::NoBucket { .. } => "bucket-not-found",
            Self::Denied { .. } => "object-denied",
            Self::WrongRegion { .. } => "wrong-region",
            Self::ClockSkew { .. } => "clock-skew",
            Self::Exists { .. } => "object-exists",
            Self::Changed { .. } => "object-changed",
            Self::Differs { .. } => "data-differs",
            Self::TooLarge { .. } => "object-too-large",
            Self::Name { .. } | Self::NoKey { .. } => "object-name",
            Self::UploadGone { .. } => "upload-gone",
            Self::CopiesNothing { .. } => "store-copies-nothing",
            Self::Busy { .. } => "store-busy",
            Self::Odd { .. } => "store-answer",
            Self::Io { .. } => "store-unreachable",
        }
    }

    /// Whether it may go better another time: a broken connection, or a store that is busy.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() != io::ErrorKind::TimedOut,
            Self::Busy { .. } => true,
            _ => false,
        }
    }
}
