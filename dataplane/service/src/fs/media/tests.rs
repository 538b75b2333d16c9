//! Descriptions that contradict themselves or the media.

use crate::fs::description::{ClassName, Description, FILE};
use crate::fs::test_folder::{Folder, MIB};
use crate::fs::{StoreError, add, check, drain, grow, open, recount, shared};

/// Every command refuses the description, with the same error, and leaves it as it is.
fn refused(folder: &Folder) -> String {
    let (store, file) = (folder.store(), folder.store().join(FILE));
    let before = std::fs::read_to_string(&file).expect("a description");
    let medium = folder.medium("added", ClassName::Ssd, 1);
    let results = [
        open(&store).map(drop),
        check(&store, false).map(drop),
        recount(&store),
        shared::serve(&store, || {}).map(drop),
        grow(&store, &folder.file("home"), 32 * MIB),
        add(&store, &medium, &mut |_| {}),
        drain(&store, &folder.file("slow"), &mut |_| {}).map(drop),
    ];
    let mut errors: Vec<String> = results
        .into_iter()
        .map(|result| match result {
            Err(error @ StoreError::Contradiction { .. }) => error.to_string(),
            other => panic!("not refused: {other:?}"),
        })
        .collect();
    errors.dedup();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(std::fs::read_to_string(&file).expect("a description"), before);
    assert!(!medium.path.exists());
    assert!(errors[0].starts_with(&format!("{}: `", file.display())), "{errors:?}");
    errors.remove(0)
}

/// Writes a description with other text; `change` is behind it.
fn rewrite(folder: &Folder, (from, to): (&str, &str), change: &str) {
    let file = folder.store().join(FILE);
    let text = std::fs::read_to_string(&file).expect("a description");
    assert!(text.contains(from), "{text}");
    std::fs::write(&file, text.replacen(from, to, 1) + change).expect("room");
}

#[test]
fn a_change_that_no_command_has_begun_is_refused() {
    let folder = Folder::new("forged-change");
    let (home, slow) = (folder.file("home"), folder.file("slow"));
    let (home, slow) = (home.display(), slow.display());
    let good = folder.read();
    let cases = [
        (format!("kind = \"drain\"\npath = \"{home}\""), "is the first medium, which has the tree"),
        (format!("kind = \"drain\"\npath = \"{home}r\""), "no medium has this file"),
        (format!("kind = \"grow\"\npath = \"{home}r\"\nbytes = 33554432"), "no medium has this file"),
        (format!("kind = \"grow\"\npath = \"{home}\"\nbytes = 16777216"), "has as many bytes"),
        (format!("kind = \"grow\"\npath = \"{home}\"\nbytes = 16777217"), "no multiple of 4096"),
        (
            format!("kind = \"add\"\nclass = \"hdd\"\npath = \"{slow}\"\nbytes = 1048576"),
            "a medium has this file already",
        ),
    ];
    for (change, fact) in cases {
        rewrite(&folder, ("", ""), &format!("\n[change]\n{change}\n"));
        let error = refused(&folder);
        let line = format!("`[change] {}`", change.replace('\n', ", "));
        assert!(error.contains(&line) && error.contains(fact), "{change}: {error}");
        assert!(error.contains("remove the section [change]"), "{error}");
        good.write(&folder.store()).expect("room");
    }
    folder.verify("before", 12);
}

/// A drain is believed of a file that has left this pool, and of no other one.
#[test]
fn a_drain_of_a_file_that_was_never_a_medium_is_refused() {
    let folder = Folder::new("forged-drain");
    let slow = folder.file("slow");
    let bytes = std::fs::read(&slow).expect("a medium");
    std::fs::write(&slow, vec![0; bytes.len()]).expect("room");
    rewrite(&folder, ("", ""), &format!("\n[change]\nkind = \"drain\"\npath = \"{}\"\n", slow.display()));
    let error = refused(&folder);
    assert!(error.contains("the file is no medium of this file system"), "{error}");
    // It is what it was.
    std::fs::write(&slow, bytes).expect("room");
    folder.verify("before", 12);
}

#[test]
fn a_class_or_a_size_that_is_not_that_of_the_superblock_is_refused() {
    let folder = Folder::new("forged-media");
    let good = folder.read();
    rewrite(&folder, ("class = \"hdd\"", "class = \"ssd\""), "");
    let error = refused(&folder);
    assert!(error.contains("`class = \"ssd\"`: ") && error.contains("write `class = \"hdd\"`"), "{error}");
    good.write(&folder.store()).expect("room");
    rewrite(&folder, ("class = \"nvm\"", "class = \"ssd\""), "");
    let error = refused(&folder);
    assert!(error.contains("/home belongs to the file system with `class = \"nvm\"`"), "{error}");
    // The file got longer without the pool.
    for (name, from, to) in [("home", 16 * MIB, 20 * MIB), ("slow", MIB, 2 * MIB)] {
        good.write(&folder.store()).expect("room");
        let file = std::fs::File::options().write(true).open(folder.file(name)).expect("a medium");
        file.set_len(to).expect("room");
        rewrite(&folder, (&format!("bytes = {from}\n"), &format!("bytes = {to}\n")), "");
        let error = refused(&folder);
        let fix = format!("write `bytes = {from}`, and cut the file to this size: truncate -s {from} ");
        assert!(error.contains(&format!("`bytes = {to}`: ")) && error.contains(&fix), "{error}");
        // What the fix says.
        file.set_len(from).expect("room");
        good.write(&folder.store()).expect("room");
        folder.verify("before", 12);
    }
}

#[test]
fn two_media_with_one_file_are_refused() {
    let folder = Folder::new("forged-twice");
    let mut description: Description = folder.read();
    description.media.push(description.media[1].clone());
    description.write(&folder.store()).expect("room");
    let error = refused(&folder);
    assert!(error.contains("/slow\"`: two media have this file"), "{error}");
}
