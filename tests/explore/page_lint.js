/** Rules that the linter of the page's JavaScript does not bring. */

const nested = {
  create(context) {
    return {
      "ConditionalExpression > ConditionalExpression"(node) {
        const message =
          "A conditional expression directly inside another one: write if statements.";
        context.report({ node, message });
      },
    };
  },
};

export default { name: "page", rules: { "no-nested-conditionals": nested } };
