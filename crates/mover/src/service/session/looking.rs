//! What a peer asks for that moves no bytes: opening, listing, beginning and letting go of files.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

use crowfly_route::policy::Policy;

use super::{Listed, Open, Session, locked, of_storage};
use crate::service::account::Legs;
use crate::service::attributes::Attributes;
use crate::service::error::ServiceError;
use crate::service::exports::{Exposed, Folder, Found, tag};
use crate::service::limits::{MAX_PAGE, MAX_RANGES};
use crate::service::message::{Answer, Entry, Request};
use crate::service::name::{Name, RelativePath};
use crate::service::partial::{Partial, Plan};
use crate::source::Source;

impl Session {
    pub(super) fn quick(&self, request: Request) -> Result<Answer, ServiceError> {
        match request {
            Request::Open { name, path, policy } => self.open(&name, &path, policy),
            Request::List {
                name,
                path,
                after,
                follow,
            } => self.list(name, path, &after, follow),
            Request::Folder {
                name,
                path,
                wanted,
                filled,
            } => {
                let folder = self.folder(&name)?;
                match filled {
                    false => folder.make(&path, &wanted).map(Answer::Made),
                    true => folder.finish(&path, &wanted).map(|()| Answer::Made(false)),
                }
            }
            Request::Create {
                name,
                path,
                size,
                tag,
                resume,
                remember,
                policy,
                wanted,
            } => {
                let folder = self.folder(&name)?;
                self.room()?;
                let (at, file) = folder.folder_for(&path)?;
                let partial = Partial::begin(Plan {
                    folder: at,
                    name: file,
                    shown: format!("{name}/{path}"),
                    length: size,
                    tag,
                    resume,
                    remember,
                    policy: of_storage(policy),
                    wanted,
                })?;
                let mut have = partial.have();
                have.truncate(MAX_RANGES);
                let file = self.keep(Open::Writing {
                    partial: RwLock::new(Some(Box::new(partial))),
                    resume,
                    policy,
                    legs: Legs::default(),
                });
                Ok(Answer::Created { file, have })
            }
            Request::Forget { name, path } => {
                self.folder(&name)?.forget(&path)?;
                Ok(Answer::Made(false))
            }
            Request::Close { file } => self.close(file),
            _ => Err(self.violation("it introduced itself twice")),
        }
    }

    /// What is exposed under a name, as a folder that things could be written into.
    fn folder(&self, name: &Name) -> Result<&Folder, ServiceError> {
        match self.shared.exports.get(name)? {
            Exposed::Folder(folder) => Ok(folder),
            _ => Err(ServiceError::ReadOnly {
                path: name.to_string(),
            }),
        }
    }

    pub(super) fn open(
        &self,
        name: &Name,
        path: &RelativePath,
        policy: Policy,
    ) -> Result<Answer, ServiceError> {
        let found = match self.shared.exports.get(name)? {
            Exposed::File(file) if path.is_empty() => Found::File(Box::new(Source::open(file)?)),
            Exposed::Memory(region) if path.is_empty() => {
                self.lent.store(true, Ordering::Release);
                return Ok(Answer::Memory(Box::new(region.descriptor().clone())));
            }
            Exposed::File(_) | Exposed::Memory(_) => {
                return Err(ServiceError::NotFound {
                    path: format!("{name}/{path}"),
                });
            }
            Exposed::Folder(folder) => folder.find(path)?,
        };
        let source = match found {
            Found::File(source) => source,
            Found::Folder(attributes) => return Ok(Answer::Folder(attributes)),
        };
        self.room()?;
        let (size, tag) = (source.size(), tag(&source.stamp()));
        let attributes = Attributes::of_file(source.buffered());
        let file = self.keep(Open::Reading {
            source,
            policy,
            legs: Legs::default(),
        });
        Ok(Answer::File {
            file,
            size,
            tag,
            attributes,
        })
    }

    pub(super) fn room(&self) -> Result<(), ServiceError> {
        let limit = self.shared.limits.files;
        match locked(&self.files).len() < limit {
            true => Ok(()),
            false => Err(ServiceError::TooMany {
                what: "open files",
                limit,
            }),
        }
    }

    pub(super) fn keep(&self, open: Open) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) as u32;
        locked(&self.files).insert(number, Arc::new(open));
        self.shared.metrics.files.fetch_add(1, Ordering::Relaxed);
        number
    }

    pub(super) fn file(&self, number: u32) -> Result<Arc<Open>, ServiceError> {
        let open = locked(&self.files).get(&number).cloned();
        open.ok_or_else(|| self.violation("it has no such file open"))
    }

    /// Lets go of a file, with its account.
    pub(super) fn let_go(
        &self,
        number: u32,
        outcome: &'static str,
    ) -> Result<Arc<Open>, ServiceError> {
        let open = locked(&self.files).remove(&number);
        let open = open.ok_or_else(|| self.violation("it has no such file open"))?;
        self.shared.metrics.files.fetch_sub(1, Ordering::Relaxed);
        self.shared.metrics.ended(open.direction(), outcome);
        for leg in open.legs().all() {
            self.shared.totals.add(leg);
        }
        Ok(open)
    }

    pub(super) fn list(
        &self,
        name: Name,
        path: RelativePath,
        after: &OsStr,
        follow: bool,
    ) -> Result<Answer, ServiceError> {
        let Exposed::Folder(folder) = self.shared.exports.get(&name)? else {
            return Err(ServiceError::WrongKind {
                path: name.to_string(),
                found: "a file or memory",
                wanted: "a folder",
            });
        };
        let mut listed = locked(&self.listed);
        let known = listed.as_ref().filter(|_| !after.is_empty());
        let asked = (&name, &path, follow);
        if known.is_none_or(|known| (&known.name, &known.path, known.follow) != asked) {
            let (entries, skipped) = folder.list(&path, follow)?;
            *listed = Some(Listed {
                name,
                path,
                follow,
                entries,
                skipped,
            });
        }
        let (entries, skipped) = match listed.as_ref() {
            Some(listed) => (listed.entries.as_slice(), listed.skipped),
            None => (&[][..], 0),
        };
        let start = entries.partition_point(|entry| entry.name.as_os_str() <= after);
        let mut bytes = 0;
        let rest = entries.get(start..).unwrap_or_default();
        let fits = rest.iter().take_while(|entry| {
            const BESIDES: usize = 1 + 8 + (1 + 2 + 8 + 4) + 8 + 2;
            bytes += entry.name.len() + BESIDES;
            bytes <= MAX_PAGE
        });
        let page: Vec<Entry> = fits.cloned().collect();
        let more = page.len() < rest.len();
        if !more {
            *listed = None;
        }
        Ok(Answer::Entries {
            entries: page,
            more,
            skipped,
        })
    }

    pub(super) fn close(&self, number: u32) -> Result<Answer, ServiceError> {
        let unchanged = match &*self.file(number)? {
            Open::Reading { source, .. } => source.unchanged(),
            Open::Writing { .. } => Ok(()),
        };
        let outcome = match (&unchanged, &*self.file(number)?) {
            (Ok(()), Open::Reading { source, legs, .. }) => {
                match source.size() > 0 && legs.all().is_empty() {
                    true => "looked-at",
                    false => "read",
                }
            }
            (Ok(()), Open::Writing { .. }) => "given-up",
            _ => "failed",
        };
        let open = self.let_go(number, outcome)?;
        unchanged?;
        Ok(Answer::Account {
            digest: None,
            legs: open.legs().to_json(),
        })
    }
}
