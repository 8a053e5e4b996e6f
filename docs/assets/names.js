// Long names break after a dot, an underscore or a slash, and nowhere else.
document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll(".md-typeset :not(pre) > code, .md-typeset .doc-object-name")) {
    for (const node of [...one.childNodes]) {
      if (node.nodeType !== Node.TEXT_NODE || node.data.length < 16) continue;
      const parts = node.data.split(/(?<=[._/])/);
      node.replaceWith(...parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part])));
    }
  }
});
