// See docs/develop/page.md, docs/develop/page.md#a-page and the page that is
// missing: docs/gone.md. The heading is missing in docs/develop/page.md#gone.
