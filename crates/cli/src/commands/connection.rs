//! What `serve` and `cp` share: how the two ends know each other, and by which NICs they talk.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use crowfly_machine::verbs::Verbs;
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsSettings, discover};
use crowfly_mover::fabric::{NicFilter, Settings, SharedKey};
use crowfly_mover::service::{Auth, Identity};

use super::directory::DirectoryArgs;
use super::key;
use crate::failure::Failure;
use crate::output::Output;

/// The variable that may hold the key.
const KEY_VARIABLE: &str = "CROWFLY_KEY";

/// What these options stand under in the help.
pub const CONNECTION: &str = "Connection";

/// How the two ends know each other.
#[derive(Args, Debug)]
#[command(next_help_heading = CONNECTION)]
pub struct ConnectionArgs {
    /// The key that all ends share, 64 hexadecimal digits, readable by its owner alone; `serve` makes the
    /// file where there is none. Without it, the variable CROWFLY_KEY may hold the key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tls_cert", "tls_key", "tls_ca"])]
    key_file: Option<PathBuf>,
    /// Instead of a key: this end's certificate and its chain, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "tls_ca")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The authorities whose certificates are trusted, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Where names are.
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// The NICs to use, such as mlx5_0,mlx5_1 or ^eth0; a name that does not exist is an error
    #[arg(long, value_name = "NICS")]
    nic: Option<NicFilter>,
}

/// Whether a key file that is not there is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// With a fresh key.
    Made,
    /// It is an error.
    Refused,
}

impl ConnectionArgs {
    /// How this end shows who it is.
    pub fn auth(&self, missing: Missing, out: &mut Output) -> Result<Auth, Failure> {
        if let (Some(cert), Some(private), Some(ca)) = (&self.tls_cert, &self.tls_key, &self.tls_ca)
        {
            key::refuse_exposed(private)?;
            // A file that is not there is not one that holds nothing.
            for file in [cert, ca] {
                std::fs::File::open(file).map_err(|error| Failure::reading(file, &error))?;
            }
            return Ok(Auth::Certificates(Identity::read(cert, private, ca)?));
        }
        if let Some(file) = &self.key_file {
            let key = match missing {
                Missing::Made => key::from_file_or_new(file, out)?,
                Missing::Refused => key::from_file(file)?,
            };
            return Ok(Auth::Key(key));
        }
        match std::env::var_os(KEY_VARIABLE) {
            Some(text) => Ok(Auth::Key(key::parse(
                &text.to_string_lossy(),
                KEY_VARIABLE,
            )?)),
            None => Ok(Auth::Open),
        }
    }

    /// Refuses, by its name, an option that has nothing to apply to: there is no other end.
    pub fn is_not_given(&self) -> Result<(), Failure> {
        let given = [
            ("--key-file", self.key_file.is_some()),
            ("--tls-cert", self.tls_cert.is_some()),
            ("--directory", self.directory.is_given()),
            ("--nic", self.nic.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => Err(Failure::usage(format!(
                "{option} applies to connections, and neither side of this copy is at a server"
            ))),
        }
    }

    /// The fabric by the NICs that are wanted, RDMA devices among them.
    pub fn fabric(&self) -> Result<Settings, Failure> {
        // Both ends put their own key in its place.
        let mut settings = Settings::new(SharedKey::from_bytes([0; 32]));
        settings.nics = self.nic.clone().unwrap_or_default();
        if let Ok(verbs) = Verbs::load() {
            let (nics, _) = discover(&verbs, &VerbsSettings::default());
            let nics = nics.into_iter().map(|nic| -> Arc<dyn Provider> { nic });
            settings.providers.extend(nics);
        }
        Ok(settings)
    }
}
