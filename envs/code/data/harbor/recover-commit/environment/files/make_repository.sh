set -e
export GIT_AUTHOR_NAME=Kim GIT_AUTHOR_EMAIL=kim@example.org GIT_COMMITTER_NAME=Kim GIT_COMMITTER_EMAIL=kim@example.org
export GIT_AUTHOR_DATE=2024-03-01T10:00:00Z GIT_COMMITTER_DATE=2024-03-01T10:00:00Z
git config --global init.defaultBranch main
git init -q notes
cd notes
echo "Notes of the garden club." > readme.txt
git add readme.txt && git commit -q -m "Begin"
git checkout -q -b draft
echo "Plant beans in May." > plan.txt
git add plan.txt && git commit -q -m "Add the plan"
echo "Seeds: 12" > budget.txt
git add budget.txt && git commit -q -m "Add the budget"
git checkout -q main && git branch -q -D draft
