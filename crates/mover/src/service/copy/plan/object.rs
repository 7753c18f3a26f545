//! What is at an object's URL: the object, or with -r all objects below it as the files that they are to be.

use std::collections::HashSet;

use super::{FilePlan, From, Source, To, Tree, refused, too_many};
use crate::objects::{Listed, Object, ObjectError, ObjectUrl, list};
use crate::service::copy::{Asked, Terms};
use crate::service::error::ServiceError;
use crate::service::limits::MAX_LISTED;
use crate::service::name::RelativePath;

pub(super) fn look(url: &ObjectUrl, asked: &Asked, terms: &Terms) -> Result<Source, ServiceError> {
    if asked.recursive {
        let until = || terms.request_until();
        let listed = list(terms.source_store()?, url, MAX_LISTED, &until)?;
        return Ok(Source::Many(tree(url, listed.ok_or_else(too_many)?)?));
    }
    if url.is_folder() {
        let why = "it names no object; `-r` copies all objects that are below it";
        return Err(refused(asked, why));
    }
    let object = Object::find(terms.source_store()?, url, terms.request_until())?;
    Ok(Source::One(object.size()))
}

/// The objects that those below a prefix become below another: of the same names, also where these could
/// not be files'.
pub(super) fn across(
    (from, to): (&ObjectUrl, &ObjectUrl),
    terms: &Terms,
) -> Result<Vec<FilePlan>, ServiceError> {
    let until = || terms.request_until();
    let listed = list(terms.source_store()?, from, MAX_LISTED, &until)?;
    let listed = listed.ok_or_else(too_many)?;
    if listed.is_empty() {
        let url = from.as_folder().to_string();
        return Err(ObjectError::NotFound { url }.into());
    }
    let mut plans = Vec::with_capacity(listed.len());
    for object in listed {
        plans.push(FilePlan {
            from: From::Object(from.below(object.path.as_bytes())?),
            to: To::Object(to.below(object.path.as_bytes())?),
            size: object.size,
        });
    }
    Ok(plans)
}

/// The files and folders that objects become. A name that would lead out of the destination, or that two of
/// them would share, is an error before anything is copied.
fn tree(url: &ObjectUrl, listed: Vec<Listed>) -> Result<Tree, ObjectError> {
    if listed.is_empty() {
        let url = url.as_folder().to_string();
        return Err(ObjectError::NotFound { url });
    }
    let whole = |path: &str| format!("{}{path}", url.as_folder());
    let bad = |path: &str, why| ObjectError::Name {
        url: whole(path),
        why,
    };
    let mut files: Vec<(RelativePath, u64)> = Vec::new();
    let mut names: HashSet<RelativePath> = HashSet::new();
    let mut folders: Vec<RelativePath> = vec![RelativePath::default()];
    for object in &listed {
        let path = object.path.as_str();
        let (name, is_folder) = match path.strip_suffix('/') {
            Some(name) => (name, true),
            None => (path, path.is_empty()),
        };
        // Tools that show a store as folders leave such an object for each.
        if is_folder && object.size > 0 {
            return Err(bad(path, "it has bytes and the name of a folder"));
        }
        // As it is: what looks like an escape in a key is none.
        let name = RelativePath::of(name.as_bytes()).map_err(|error| bad(path, error.why))?;
        match is_folder {
            true => folders.push(name),
            false if !names.insert(name.clone()) => {
                return Err(bad(path, "the store lists it twice"));
            }
            false => files.push((name, object.size)),
        }
    }
    let mut known: HashSet<RelativePath> = folders.iter().cloned().collect();
    for (file, _) in &files {
        let mut above = file.parted().map(|(above, _)| above);
        while let Some(folder) = above.take() {
            above = folder.parted().map(|(above, _)| above);
            if !known.insert(folder.clone()) {
                break;
            }
            folders.push(folder);
        }
    }
    if let Some(both) = folders.iter().find(|folder| names.contains(*folder)) {
        let why = "there are objects below it as well, and no file is a folder";
        return Err(bad(&String::from_utf8_lossy(both.as_bytes()), why));
    }
    // Those that lie in others behind them.
    folders.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    folders.dedup();
    Ok(Tree {
        files,
        folders: folders.into_iter().map(|folder| (folder, None)).collect(),
        skipped: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(paths: &[(&str, u64)]) -> Result<Tree, ObjectError> {
        let listed = paths.iter().map(|(path, size)| Listed {
            path: (*path).to_owned(),
            size: *size,
        });
        tree(&"s3://b/p".parse().expect("a prefix"), listed.collect())
    }

    #[test]
    fn objects_become_files_in_the_folders_that_their_names_tell_of() {
        let tree = grown(&[("", 0), ("a/b/c", 5), ("a/d", 0), ("e/", 0), ("f%2f", 7)]);
        let tree = tree.expect("a tree");
        let files = tree
            .files
            .iter()
            .map(|(path, size)| (path.as_bytes(), *size));
        let expected = [("a/b/c", 5), ("a/d", 0), ("f%2f", 7)]
            .map(|(path, size): (&str, u64)| (path.as_bytes(), size));
        assert_eq!(files.collect::<Vec<_>>(), expected);
        let folders = tree.folders.iter().map(|(path, _)| path.to_string());
        assert_eq!(folders.collect::<Vec<_>>(), ["", "a", "a/b", "e"]);
    }

    #[test]
    fn names_that_lead_out_or_mean_two_things_are_refused_before_anything_is_copied() {
        let why = |paths: &[(&str, u64)]| {
            let error = grown(paths).map(drop).expect_err("refused");
            assert_eq!(error.code(), "object-name", "{error}");
            error.to_string()
        };
        for bad in [
            "../x",
            "a/../../x",
            "/etc/passwd",
            "a//b",
            "./a",
            "a\0b",
            "a/..",
        ] {
            assert!(why(&[(bad, 1)]).contains("s3://b/p/"), "{bad:?}");
        }
        assert!(why(&[(&"x".repeat(256), 1)]).contains("s3://b/p/xxx"));
        assert!(why(&[("a", 1), ("a/b", 1)]).starts_with("s3://b/p/a cannot be a file"));
        assert!(why(&[("a/b", 1), ("a", 1)]).contains("no file is a folder"));
        assert!(why(&[("a/b", 1), ("a/b/c/d", 1)]).contains("s3://b/p/a/b "));
        assert!(why(&[("a", 1), ("a/", 0)]).contains("no file is a folder"));
        assert!(why(&[("a/", 3)]).contains("the name of a folder"));
        assert!(why(&[("a", 1), ("a", 1)]).contains("twice"));
    }

    #[test]
    fn nothing_below_a_prefix_is_nothing_found() {
        let error = grown(&[]).map(drop).expect_err("nothing");
        assert_eq!(error.to_string(), "there is no s3://b/p/");
    }
}
