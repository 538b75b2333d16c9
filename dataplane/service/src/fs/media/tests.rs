//! Descriptions that contradict themselves or the media.

use std::time::Duration;

use crate::fs::description::{ClassName, Description, FILE, MediumDescription, Migration, ModelName};
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

/// Data on a file in memory with the model of a disk: each place that is far from the one before
/// costs a seek and half a rotation, for the file system alone and for clients of a service.
#[test]
fn a_medium_in_memory_can_be_as_slow_as_a_rotating_disk() {
    const READS: u32 = 16;
    // More than the 4 ms of half a rotation, less than a mean seek.
    let least = Duration::from_millis(5) * READS;
    let folder = Folder::new("model");
    let disk =
        MediumDescription { model: Some(ModelName::Rotating), ..folder.medium("disk", ClassName::Hdd, 24) };
    add(&folder.store(), &disk, &mut |_| {}).expect("room");
    let text = std::fs::read_to_string(folder.store().join(FILE)).expect("a description");
    assert!(text.contains("model = \"rotating\""), "{text}");
    let migration = Some(Migration { rate: 0, low: 0, high: 1, hard: 2 });
    Description { migration, ..folder.read() }.write(&folder.store()).expect("room");
    folder.write("data", 16);
    let took = folder.read_apart("data", READS, 16);
    assert!(took >= least, "{took:?}");
    folder.verify("data", 16);
}

#[test]
fn a_model_of_what_is_no_disk_in_memory_is_refused() {
    let folder = Folder::new("model-wrong");
    let good = folder.read();
    let model = Some(ModelName::Rotating);
    // The home is of class nvm.
    rewrite(&folder, ("class = \"nvm\"", "class = \"nvm\"\nmodel = \"rotating\""), "");
    let error = refused(&folder);
    assert!(error.contains("/home is no file of class hdd on a tmpfs"), "{error}");
    good.write(&folder.store()).expect("room");
    // Not in memory.
    let path = std::env::temp_dir().join(format!("sietch-model-{}", std::process::id()));
    let medium = MediumDescription { class: ClassName::Hdd, path: path.clone(), bytes: MIB, model };
    // TMPFS_MAGIC, linux/magic.h.
    if rustix::fs::statfs(std::env::temp_dir()).expect("a folder").f_type == 0x0102_1994 {
        return;
    }
    let error = add(&folder.store(), &medium, &mut |_| {}).expect_err("a file on a disk").to_string();
    assert!(error.contains("is no file of class hdd on a tmpfs"), "{error}");
    assert!(!path.exists() && folder.read() == good);
    folder.verify("before", 12);
}
