"""A hook of MkDocs: "edit" on a page of the reference leads to its header."""


def on_page_context(context, page, config, nav):
    if page.edit_url and "docs/reference/headers/" in page.edit_url:
        page.edit_url = page.edit_url.replace("docs/reference/headers/", "include/accelerate/").removesuffix(".md") + ".h"
    return context
