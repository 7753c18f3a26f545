//! Mutual TLS on the control channel: both ends show a certificate of an authority that the other
//! trusts. The server then tells the client the key of its fabric, so that the lanes of the bulk bytes are
//! authenticated as well; they are not encrypted.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, Connection, RootCertStore, ServerConfig};

use super::channel::Channel;
use super::error::ServiceError;
use super::limits::MAX_FRAME;

/// What a read from the connection takes at a time.
const READ: usize = 16 << 10;
const LENGTH: usize = 4;

/// Why certificates could not be used, or a connection that they protect failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file could not be read as what it should be.
    #[error("{path} holds no usable {what}: {why}")]
    File {
        /// The file.
        path: String,
        /// `certificate`, `private key` or `certificate authority`.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not go together, or are of a kind that is not supported.
    #[error("the certificate cannot be used: {0}")]
    Identity(String),
    /// The other end's certificate is not one to trust.
    #[error("{peer} showed a certificate that is not trusted: {why}")]
    NotTrusted {
        /// The other end.
        peer: String,
        /// Why not.
        why: String,
    },
    /// The other end does not accept this end's certificate.
    #[error("{peer} does not accept this end's certificate: {why}")]
    NotAccepted {
        /// The other end.
        peer: String,
        /// What it said.
        why: String,
    },
    /// The connection broke, or what came is no TLS.
    #[error("the protected connection to {peer} broke: {why}")]
    Broken {
        /// The other end.
        peer: String,
        /// How.
        why: String,
    },
}

impl TlsError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::File { .. } | Self::Identity(_) => "bad-certificate",
            Self::NotTrusted { .. } => "peer-not-trusted",
            Self::NotAccepted { .. } => "not-authenticated",
            Self::Broken { .. } => "peer-lost",
        }
    }

    fn of(peer: &str, error: &rustls::Error) -> Self {
        let (peer, why) = (peer.to_owned(), error.to_string());
        match error {
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                Self::NotTrusted { peer, why }
            }
            rustls::Error::AlertReceived(_) => Self::NotAccepted { peer, why },
            _ => Self::Broken { peer, why },
        }
    }

    fn broken(peer: &str, why: impl fmt::Display) -> Self {
        Self::Broken {
            peer: peer.to_owned(),
            why: why.to_string(),
        }
    }
}

/// What one end shows, and whom it trusts.
#[derive(Clone)]
pub struct Identity {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

impl Identity {
    /// Reads PEM files: a certificate with its chain, its private key, and the authorities whose
    /// certificates are trusted.
    ///
    /// # Errors
    /// [`TlsError::File`] and [`TlsError::Identity`].
    pub fn read(certificate: &Path, key: &Path, authorities: &Path) -> Result<Self, TlsError> {
        let bad = |path: &Path, what, why: String| TlsError::File {
            path: path.display().to_string(),
            what,
            why,
        };
        let certificates = |path: &Path, what| -> Result<Vec<CertificateDer<'static>>, TlsError> {
            let found: Result<Vec<_>, _> = match CertificateDer::pem_file_iter(path) {
                Ok(found) => found.collect(),
                Err(error) => Err(error),
            };
            match found {
                Ok(found) if found.is_empty() => Err(bad(path, what, "there is none in it".into())),
                Ok(found) => Ok(found),
                Err(error) => Err(bad(path, what, error.to_string())),
            }
        };
        let chain = certificates(certificate, "certificate")?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| bad(key, "private key", error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(authorities, "certificate authority")? {
            roots
                .add(root)
                .map_err(|error| bad(authorities, "certificate authority", error.to_string()))?;
        }
        Self::of(chain, private, Arc::new(roots))
    }

    fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, TlsError> {
        let unusable = |error: &dyn fmt::Display| TlsError::Identity(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = [&rustls::version::TLS13];
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| unusable(&error))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| unusable(&error))?;
        // Every connection shows its certificate anew.
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(|error| unusable(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unusable(&error))?;
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }
}

struct State {
    tls: Connection,
    /// Decrypted bytes that are not a whole message yet.
    received: Vec<u8>,
    ended: bool,
}

/// Messages with their length in front, over TLS.
pub(crate) struct TlsChannel {
    stream: TcpStream,
    peer: String,
    state: Mutex<State>,
}

impl TlsChannel {
    /// The dialer's end; `host` is the name that the server's certificate has to be for.
    ///
    /// # Errors
    /// [`TlsError`].
    pub(crate) fn dial(
        stream: TcpStream,
        host: &str,
        peer: &str,
        identity: &Identity,
    ) -> Result<Self, TlsError> {
        let name =
            ServerName::try_from(host.to_owned()).map_err(|error| TlsError::broken(peer, error))?;
        let tls = rustls::ClientConnection::new(Arc::clone(&identity.client), name)
            .map_err(|error| TlsError::of(peer, &error))?;
        Self::over(stream, peer, tls.into())
    }

    /// The acceptor's end.
    ///
    /// # Errors
    /// [`TlsError`].
    pub(crate) fn accept(
        stream: TcpStream,
        peer: &str,
        identity: &Identity,
    ) -> Result<Self, TlsError> {
        let tls = rustls::ServerConnection::new(Arc::clone(&identity.server))
            .map_err(|error| TlsError::of(peer, &error))?;
        Self::over(stream, peer, tls.into())
    }

    fn over(stream: TcpStream, peer: &str, tls: Connection) -> Result<Self, TlsError> {
        let tuned = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true));
        tuned.map_err(|error| TlsError::broken(peer, error))?;
        Ok(Self {
            stream,
            peer: peer.to_owned(),
            state: Mutex::new(State {
                tls,
                received: Vec::new(),
                ended: false,
            }),
        })
    }

    /// Waits until both ends know each other.
    ///
    /// # Errors
    /// When one does not trust the other, or it takes too long.
    pub(crate) fn handshake(&self, until: Instant) -> Result<(), TlsError> {
        loop {
            {
                let mut state = self.state();
                self.flush(&mut state, until)?;
                if !state.tls.is_handshaking() {
                    return Ok(());
                }
                self.pump(&mut state, until)?;
                if state.ended {
                    return Err(self.broken("it was closed"));
                }
                if !state.tls.is_handshaking() {
                    return self.flush(&mut state, until);
                }
            }
            if !self.await_socket(PollFlags::IN, until)? {
                return Err(self.broken("it took too long to introduce itself"));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broken(&self, why: impl fmt::Display) -> TlsError {
        TlsError::broken(&self.peer, why)
    }

    /// Waits for the socket; `false` when the time is over.
    fn await_socket(&self, flags: PollFlags, until: Instant) -> Result<bool, TlsError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let left = Timespec::try_from(left).map_err(|error| self.broken(error))?;
        let mut fds = [PollFd::new(&self.stream, flags)];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(self.broken(error)),
        }
    }

    /// Writes what TLS has to say, within the time.
    fn flush(&self, state: &mut State, until: Instant) -> Result<(), TlsError> {
        while state.tls.wants_write() {
            match state.tls.write_tls(&mut &self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.await_socket(PollFlags::OUT, until)? {
                        return Err(self.broken("it takes nothing any more"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    /// Takes in what has arrived.
    fn pump(&self, state: &mut State, until: Instant) -> Result<(), TlsError> {
        match state.tls.read_tls(&mut &self.stream) {
            Ok(0) => state.ended = true,
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(self.broken(error)),
        }
        let processed = state.tls.process_new_packets();
        // An alert about what was wrong is still to be sent.
        let flushed = self.flush(state, until);
        processed.map_err(|error| TlsError::of(&self.peer, &error))?;
        flushed?;
        let mut plain = [0; READ];
        loop {
            match state.tls.reader().read(&mut plain) {
                Ok(0) => {
                    state.ended = true;
                    return Ok(());
                }
                Ok(read) => state.received.extend_from_slice(&plain[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(self.broken(error)),
            }
        }
    }
}

/// The first whole message, taken off the front.
fn whole(received: &mut Vec<u8>) -> Result<Option<Vec<u8>>, &'static str> {
    let Some((length, rest)) = received.split_first_chunk::<LENGTH>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FRAME {
        return Err("a message is too long");
    }
    let Some(message) = rest.get(..length) else {
        return Ok(None);
    };
    let message = message.to_vec();
    received.drain(..LENGTH + length);
    Ok(Some(message))
}

impl Channel for TlsChannel {
    fn send(&self, message: &[u8], time: Duration) -> Result<(), ServiceError> {
        let until = Instant::now() + time;
        let mut frame = (message.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(message);
        let mut state = self.state();
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match state.tls.writer().write(rest) {
                Ok(taken) => rest = rest.get(taken..).unwrap_or_default(),
                Err(error) => return Err(self.broken(error).into()),
            }
            self.flush(&mut state, until)?;
        }
        Ok(())
    }

    fn receive(&self, time: Duration) -> Result<Option<Vec<u8>>, ServiceError> {
        let until = Instant::now() + time;
        loop {
            {
                let mut state = self.state();
                let protocol = |what| ServiceError::Protocol {
                    peer: self.peer.clone(),
                    what,
                };
                if let Some(message) = whole(&mut state.received).map_err(protocol)? {
                    return Ok(Some(message));
                }
                if state.ended {
                    return Err(self.broken("it was closed").into());
                }
                self.flush(&mut state, until)?;
                self.pump(&mut state, until)?;
                if let Some(message) = whole(&mut state.received).map_err(protocol)? {
                    return Ok(Some(message));
                }
                if state.ended {
                    return Err(self.broken("it was closed").into());
                }
            }
            if !self.await_socket(PollFlags::IN, until)? {
                return Ok(None);
            }
        }
    }

    fn close(&self) {
        let mut state = self.state();
        state.tls.send_close_notify();
        let _ = self.flush(&mut state, Instant::now());
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn address(&self) -> String {
        self.peer.clone()
    }
}
