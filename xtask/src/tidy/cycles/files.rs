//! What one source file defines, imports and names, read with `syn`.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// What is known of one file.
#[derive(Default)]
pub(super) struct Contents {
    /// Names of the items that it defines at its top level, and in modules inside it.
    pub(super) items: BTreeSet<String>,
    /// Names that `use` brings in, with the path that each stands for.
    pub(super) imports: BTreeMap<String, Vec<String>>,
    /// Paths of `use path::*`.
    pub(super) globs: Vec<Vec<String>>,
    /// Imported names that the file only passes on, unless its code names them.
    pub(super) exported: BTreeSet<String>,
    /// Every path that its code names, as written.
    pub(super) paths: BTreeSet<Vec<String>>,
}

/// Reads `text`.
pub(super) fn read(text: &str) -> syn::Result<Contents> {
    let mut contents = Contents::default();
    contents.visit_file(&syn::parse_file(text)?);
    Ok(contents)
}

impl Contents {
    fn import(&mut self, tree: &UseTree, before: &[String], exported: bool) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), exported),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before, exported)),
            UseTree::Glob(_) => self.globs.push(before.to_vec()),
            UseTree::Name(name) => {
                let path = if name.ident == "self" { before.to_vec() } else { with(&name.ident) };
                let local = path.last().cloned().unwrap_or_default();
                self.imported(local, path, exported);
            }
            UseTree::Rename(rename) => {
                let path = if rename.ident == "self" { before.to_vec() } else { with(&rename.ident) };
                self.imported(rename.rename.to_string(), path, exported);
            }
        }
    }

    fn imported(&mut self, name: String, path: Vec<String>, exported: bool) {
        if exported {
            self.exported.insert(name.clone());
        }
        self.imports.insert(name, path);
    }

    /// The paths among the tokens of a macro, which syn does not parse.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 => path.push(name.to_string()),
                TokenTree::Ident(name) => self.path(std::mem::replace(&mut path, vec![name.to_string()])),
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    self.path(std::mem::take(&mut path));
                    self.tokens(group.stream());
                }
                _ => self.path(std::mem::take(&mut path)),
            }
            colons = 0;
        }
        self.path(path);
    }

    fn path(&mut self, path: Vec<String>) {
        if !path.is_empty() {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Contents {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).iter().any(is_test) {
            return;
        }
        if let Some(name) = name(item) {
            self.items.insert(name);
        }
        if let Item::Use(import) = item {
            let exported = !matches!(import.vis, Visibility::Inherited);
            self.import(&import.tree, &[], exported);
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !function.attrs.iter().any(is_test) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// Whether `attribute` keeps its item out of everything but tests: `#[cfg(test)]`, `#[cfg(all(test,
/// ...))]`.
fn is_test(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let text = list.tokens.to_string();
    attribute.path().is_ident("cfg") && (text == "test" || text.starts_with("all (test"))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name under which others reach `item`. A module without a body is in a file of its own.
fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Mod(item) if item.content.is_some() => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
