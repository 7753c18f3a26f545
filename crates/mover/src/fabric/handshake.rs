//! Finding out that the other end knows the shared key, without showing it, and agreeing on fresh
//! keys for one connection.
//!
//! 1. The dialer sends magic, version, what the connection is for, a nonce and a token.
//! 2. The acceptor sends magic, version, its own nonce and a proof over both nonces.
//! 3. The dialer checks the proof and sends its own.
//!
//! Every message has a fixed length, so whoever has not proved anything yet can make the other end
//! neither wait past the deadline nor reserve memory. Both nonces are fresh, so nothing recorded
//! from another connection is of use.

use std::io;
use std::time::Instant;

use super::error::FabricError;
use super::fields::{Reader, Writer};
use super::identity::{SharedKey, random};
use super::socket::Socket;
use super::wire::{Lane, PROTOCOL_VERSION, same};

const MAGIC: [u8; 4] = *b"CRFW";
const NONCE: usize = 32;
const PROOF: usize = 32;
const OPENING: usize = 4 + 2 + 1 + NONCE + TOKEN;
const ANSWER: usize = 4 + 2 + NONCE + PROOF;

/// Bytes of a token that ties a stream to a session.
pub(crate) const TOKEN: usize = 16;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The control connection of a new session.
    Control = 1,
    /// Another connection of a session that is being set up; the token says which.
    Rail = 2,
}

/// The keys of a connection, and what it is for.
pub(crate) struct Agreed {
    pub sending: Lane,
    pub receiving: Lane,
    pub purpose: Purpose,
    pub token: [u8; TOKEN],
}

/// The dialer's part.
pub(crate) fn dial(
    socket: &Socket,
    key: &SharedKey,
    purpose: Purpose,
    token: [u8; TOKEN],
    address: &str,
    deadline: Instant,
) -> Result<Agreed, FabricError> {
    let nonce: [u8; NONCE] = random()?;
    let mut out = Writer::default();
    out.raw(&MAGIC)
        .u16(PROTOCOL_VERSION)
        .u8(purpose as u8)
        .raw(&nonce)
        .raw(&token);
    let opening = out.finish();
    let failed = |error| unreachable(address, error);
    socket.write_all(&opening, deadline).map_err(failed)?;
    let mut answer = [0; ANSWER];
    socket.read_all(&mut answer, deadline).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            // An acceptor that cannot read the opening hangs up.
            refused(address)
        } else {
            failed(error)
        }
    })?;
    let mut fields = Reader::new(&answer);
    let theirs = version(&mut fields, address)?;
    let (Some(their_nonce), Some(proof)) = (theirs.array::<NONCE>(), theirs.array::<PROOF>())
    else {
        return Err(refused(address));
    };
    let keys = Keys::new(key, &opening, &their_nonce);
    if !same(&keys.prove("acceptor"), &proof) {
        return Err(refused(address));
    }
    socket
        .write_all(&keys.prove("dialer"), deadline)
        .map_err(failed)?;
    Ok(Agreed {
        sending: Lane::new(keys.derive("dialer to acceptor")),
        receiving: Lane::new(keys.derive("acceptor to dialer")),
        purpose,
        token,
    })
}

/// The acceptor's part.
pub(crate) fn accept(
    socket: &Socket,
    key: &SharedKey,
    address: &str,
    deadline: Instant,
) -> Result<Agreed, FabricError> {
    let failed = |error| unreachable(address, error);
    let mut opening = [0; OPENING];
    socket.read_all(&mut opening, deadline).map_err(failed)?;
    let mut fields = Reader::new(&opening);
    let nonce: [u8; NONCE] = random()?;
    let rest = match version(&mut fields, address) {
        Ok(rest) => rest,
        Err(error) => {
            // So that the other end can say which version it met.
            let _ = socket.write_all(&answer(&nonce, &[0; PROOF]), deadline);
            return Err(error);
        }
    };
    let purpose = match rest.u8() {
        Some(1) => Purpose::Control,
        Some(2) => Purpose::Rail,
        _ => return Err(protocol(address, "a connection for nothing known")),
    };
    let _their_nonce = rest.array::<NONCE>();
    let token = rest.array().ok_or(protocol(address, "no token"))?;
    let keys = Keys::new(key, &opening, &nonce);
    let proof = keys.prove("acceptor");
    socket
        .write_all(&answer(&nonce, &proof), deadline)
        .map_err(failed)?;
    let mut theirs = [0; PROOF];
    socket
        .read_all(&mut theirs, deadline)
        .map_err(|_| refused(address))?;
    if !same(&keys.prove("dialer"), &theirs) {
        return Err(refused(address));
    }
    Ok(Agreed {
        sending: Lane::new(keys.derive("acceptor to dialer")),
        receiving: Lane::new(keys.derive("dialer to acceptor")),
        purpose,
        token,
    })
}

fn answer(nonce: &[u8; NONCE], proof: &[u8; PROOF]) -> Vec<u8> {
    let mut out = Writer::default();
    out.raw(&MAGIC).u16(PROTOCOL_VERSION).raw(nonce).raw(proof);
    out.finish()
}

fn version<'a, 'b>(
    fields: &'a mut Reader<'b>,
    address: &str,
) -> Result<&'a mut Reader<'b>, FabricError> {
    if fields.array() != Some(MAGIC) {
        return Err(protocol(address, "it does not speak the fabric's protocol"));
    }
    match fields.u16() {
        Some(PROTOCOL_VERSION) => Ok(fields),
        theirs => Err(FabricError::WrongVersion {
            address: address.to_owned(),
            theirs: theirs.unwrap_or(0),
            ours: PROTOCOL_VERSION,
        }),
    }
}

pub(crate) fn unreachable(address: &str, error: io::Error) -> FabricError {
    FabricError::Unreachable {
        address: address.to_owned(),
        source: std::sync::Arc::new(error),
    }
}

fn refused(address: &str) -> FabricError {
    FabricError::NotAuthenticated {
        address: address.to_owned(),
    }
}

pub(crate) fn protocol(address: &str, what: &'static str) -> FabricError {
    FabricError::Protocol {
        address: address.to_owned(),
        what,
    }
}

/// What both ends can compute from the shared key and the two nonces.
struct Keys([u8; 32]);

impl Keys {
    fn new(key: &SharedKey, opening: &[u8], acceptors_nonce: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(key.as_bytes());
        hasher.update(opening);
        hasher.update(acceptors_nonce);
        Self(*hasher.finalize().as_bytes())
    }

    fn derive(&self, what: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, what.as_bytes()).as_bytes()
    }

    fn prove(&self, who: &str) -> [u8; PROOF] {
        self.derive(who)
    }
}
